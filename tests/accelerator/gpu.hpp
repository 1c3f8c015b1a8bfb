/// GPUs for tests: the double of the driver, or with TEST_REAL_GPU=1 the machine's own.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accelerator/accelerator.hpp"
#include "accelerator/cuda_library.hpp"
#include "doubles/cuda/cuda_double.hpp"

namespace railyard::accelerator::testing {

/// Calls of a program that uses the driver itself.
struct ProgramCalls {
  cuda::Code (*allocate)(cuda::Address* address, std::size_t bytes) = nullptr;
  cuda::Code (*allocate_managed)(cuda::Address* address, std::size_t bytes, unsigned flags) = nullptr;
  cuda::Code (*free)(cuda::Address address) = nullptr;
  cuda::Code (*set_current)(cuda::CudaContext context) = nullptr;
  cuda::Code (*to_device)(cuda::Address to, const void* from, std::size_t bytes) = nullptr;
  cuda::Code (*to_host)(void* to, cuda::Address from, std::size_t bytes) = nullptr;
  cuda::Code (*create)(cuda::MemoryHandle* handle, std::size_t bytes, const cuda::AllocationProperties* properties,
                       unsigned long long flags) = nullptr;
  cuda::Code (*granularity)(std::size_t* bytes, const cuda::AllocationProperties* properties, int option) = nullptr;
  /// Null on a real GPU.
  void (*live)(CudaDoubleLive* live) = nullptr;
  void (*set_copy_us)(unsigned microseconds) = nullptr;
  void (*fail_copy)(std::uint64_t number) = nullptr;
  void (*mend)() = nullptr;
  int (*peek)(void* to, const void* device, std::size_t bytes) = nullptr;
  int (*poke)(void* device, const void* from, std::size_t bytes) = nullptr;
};

bool wants_real_gpu();
/// Loads the double, unless a real GPU is wanted.
void load_gpu();
const ProgramCalls& program();
/// The whole table of the library.
const cuda::Library& library();

/// Memory of cudaMalloc (cuMemAlloc), or mapped by the program (cuMemMap).
class DeviceMemory {
 public:
  enum class Kind { allocated, mapped, mapped_unshareable };
  explicit DeviceMemory(std::size_t bytes, Kind kind = Kind::allocated);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  std::size_t size() const { return bytes_; }
  void fill(const std::vector<std::byte>& bytes, std::size_t at = 0) const;
  std::vector<std::byte> read(std::size_t at, std::size_t bytes) const;

 private:
  cuda::Address address_ = 0;
  std::size_t bytes_;
  Kind kind_;
  cuda::MemoryHandle handle_ = 0;
};

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed);
bool wait_for(CopyQueue& queue, std::uint64_t number);

/// GPU 0's primary context is current, as after any call of the CUDA runtime; and nothing is left at the end.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  bool on_double() const { return program().live != nullptr; }

  Driver* gpus_ = nullptr;
  cuda::CudaContext context_ = nullptr;
  CudaDoubleLive before_{};
};

/// Another process that shares memory; see peer.cc. Ended with SIGKILL.
class Peer {
 public:
  Peer(std::size_t bytes, DeviceMemory::Kind kind, unsigned seed);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const ShareHandle& handle() const { return handle_; }
  /// What its memory holds, as itself reads it.
  std::vector<std::byte> read();
  /// Maps a handle there: its error's text, or "".
  std::string map(const ShareHandle& handle);
  void kill();

 private:
  int socket_ = -1;
  int pid_ = -1;
  std::size_t bytes_ = 0;
  ShareHandle handle_;
};

/// The other process's main.
int run_peer(int socket);

/// What a process answers that was asked for the driver; see main.cc.
constexpr int kDriverFound = 10;
constexpr int kDriverNone = 11;

}  // namespace railyard::accelerator::testing
