/// Memory of a GPU as a program has it: on the double of the driver, or with TEST_REAL_GPU=1 on the machine's own.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "doubles/cuda/cuda_double.hpp"

namespace railyard::test {

/// The driver, loaded and with GPU 0's context current in this thread.
class Gpu {
 public:
  Gpu() {
    const char* const real = std::getenv("TEST_REAL_GPU");
    library_ =
        ::dlopen(real != nullptr && *real == '1' ? "libcuda.so.1" : RAILYARD_CUDA_DOUBLE, RTLD_NOW | RTLD_GLOBAL);
    if (library_ == nullptr) throw std::runtime_error(::dlerror());
    need(call<int(unsigned)>("cuInit")(0), "cuInit");
    void* context = nullptr;
    need(call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0), "cuDevicePrimaryCtxRetain");
    need(call<int(void*)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
  }
  bool is_double() const { return ::dlsym(library_, "cuda_double_live") != nullptr; }
  template <typename Call>
  Call* call(const char* name) const {
    void* const found = ::dlsym(library_, name);
    if (found == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Call*>(found);
  }
  static void need(int code, const char* what) {
    if (code != 0) throw std::runtime_error(std::string(what) + " answers " + std::to_string(code));
  }

 private:
  void* library_ = nullptr;
};

class GpuMemory {
 public:
  GpuMemory(const Gpu& gpu, std::size_t bytes) : gpu_(gpu), bytes_(bytes) {
    Gpu::need(gpu.call<int(std::uint64_t*, std::size_t)>("cuMemAlloc_v2")(&address_, bytes), "cuMemAlloc");
    fill(std::vector<std::byte>(bytes));
  }
  ~GpuMemory() { gpu_.call<int(std::uint64_t)>("cuMemFree_v2")(address_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  std::size_t size() const { return bytes_; }
  void fill(const std::vector<std::byte>& from, std::size_t at = 0) const {
    Gpu::need(gpu_.call<int(std::uint64_t, const void*, std::size_t)>("cuMemcpyHtoD_v2")(address_ + at, from.data(),
                                                                                         from.size()),
              "cuMemcpyHtoD");
    // A copy out of pageable memory may return before its bytes are there. (The double has nothing that waits for all.)
    if (!gpu_.is_double()) Gpu::need(gpu_.call<int()>("cuCtxSynchronize")(), "cuCtxSynchronize");
  }
  std::vector<std::byte> read(std::size_t at, std::size_t bytes) const {
    std::vector<std::byte> to(bytes);
    Gpu::need(gpu_.call<int(void*, std::uint64_t, std::size_t)>("cuMemcpyDtoH_v2")(to.data(), address_ + at, bytes),
              "cuMemcpyDtoH");
    return to;
  }

 private:
  const Gpu& gpu_;
  std::uint64_t address_ = 0;
  std::size_t bytes_;
};

/// Memory of either kind that the test fills and reads.
class AnyMemory {
 public:
  AnyMemory(const Gpu& gpu, bool on_device, std::size_t bytes) {
    if (on_device)
      device_ = std::make_unique<GpuMemory>(gpu, bytes);
    else
      host_.resize(bytes);
  }
  std::byte* data() { return device_ ? device_->data() : host_.data(); }
  std::span<std::byte> span() { return {data(), device_ ? device_->size() : host_.size()}; }
  void fill(const std::vector<std::byte>& from, std::size_t at = 0) {
    if (device_)
      device_->fill(from, at);
    else
      std::copy(from.begin(), from.end(), host_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  std::vector<std::byte> read(std::size_t at, std::size_t bytes) {
    if (device_) return device_->read(at, bytes);
    const auto from = host_.begin() + static_cast<std::ptrdiff_t>(at);
    return {from, from + static_cast<std::ptrdiff_t>(bytes)};
  }

 private:
  std::unique_ptr<GpuMemory> device_;
  std::vector<std::byte> host_;
};

}  // namespace railyard::test
