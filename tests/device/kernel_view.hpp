/// Kernels of a GPU on the double of the driver: a thread plays the kernel, and is given device memory where it can
/// touch it.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "device_world.hpp"

namespace railyard {

/// The program's own use of the driver.
class ProgramMemory {
 public:
  explicit ProgramMemory(std::size_t bytes) : bytes_(bytes), library_(::dlopen(RAILYARD_CUDA_DOUBLE, RTLD_NOW)) {
    EXPECT_NE(library_, nullptr) << ::dlerror();
    void* context = nullptr;
    EXPECT_EQ(call<int(unsigned)>("cuInit")(0), 0);
    EXPECT_EQ(call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0), 0);
    EXPECT_EQ(call<int(void*)>("cuCtxSetCurrent")(context), 0);
    EXPECT_EQ(call<int(unsigned long long*, std::size_t)>("cuMemAlloc_v2")(&address_, bytes), 0);
  }
  ~ProgramMemory() { EXPECT_EQ(call<int(unsigned long long)>("cuMemFree_v2")(address_), 0); }
  ProgramMemory(const ProgramMemory&) = delete;
  ProgramMemory& operator=(const ProgramMemory&) = delete;

  std::span<std::byte> memory() const { return {reinterpret_cast<std::byte*>(address_), bytes_}; }
  void read(void* to) const {
    EXPECT_NE(call<int(void*, const void*, std::size_t)>("cuda_double_peek")(to, memory().data(), bytes_), 0);
  }
  template <typename Function>
  Function* call(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }
  /// The same memory where a thread can touch it; host memory stays as it is.
  template <typename T>
  T* touch(T* pointer) const {
    void* const found = call<void*(const void*)>("cuda_double_reach")(pointer);
    return found == nullptr ? pointer : static_cast<T*>(found);
  }

 private:
  std::size_t bytes_;
  void* library_;
  unsigned long long address_ = 0;
};

/// The handle as the kernel would see it, with device memory where this thread can touch it.
class KernelView {
 public:
  KernelView(const device::Window& window, const ProgramMemory& shared) : handle_(window.handle()) {
    const auto touch = [&](auto*& pointer) { pointer = shared.touch(pointer); };
    touch(handle_.tails);
    touch(handle_.posted);
    touch(handle_.barriers);
    touch(handle_.failure_claim);
    touch(handle_.local);
    touch(handle_.signals);
    touch(handle_.signal_adds);
    touch(handle_.counters);
    touch(handle_.counter_adds);
    touch(handle_.peers);
    peers_.assign(handle_.peers, handle_.peers + handle_.size);
    const auto touch_all = [&](std::span<device::detail::Peer> peers) {
      for (device::detail::Peer& peer : peers) {
        touch(peer.data);
        touch(peer.signals);
      }
    };
    touch_all(peers_);
    touch_all(handle_.close);
    handle_.peers = peers_.data();
  }
  KernelView(const KernelView&) = delete;
  KernelView& operator=(const KernelView&) = delete;
  device::Window window() const { return device::Window(handle_); }

 private:
  std::vector<device::detail::Peer> peers_;
  device::detail::Handle handle_;
};

}  // namespace railyard
