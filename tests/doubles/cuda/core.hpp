/// What the parts of the double share.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerator/cuda_library.hpp"
#include "doubles/cuda/cuda_double.hpp"

/// The driver's calls: found by name, never called by one another.
#define CUDA_DOUBLE_CALL extern "C" __attribute__((visibility("default")))

namespace cuda_double {

namespace cuda = railyard::accelerator::cuda;
using cuda::Address;
using cuda::Code;

constexpr std::size_t kGranularity = std::size_t{2} << 20;  ///< of cuMemCreate
constexpr std::size_t kMostDevices = 16;

/// Physical memory: a file and where its bytes are mapped.
struct Block {
  int device = 0;
  std::size_t bytes = 0;
  int descriptor = -1;
  std::byte* secret = nullptr;
  std::uint64_t inode = 0;
  int handle_types = 0;
  std::uint64_t id = 0;
  bool for_nics = true;
  int nic_mappings = 0;  ///< with the state's mutex held

  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();
  static std::shared_ptr<Block> create(std::size_t bytes, int device);
  /// Of a descriptor that stays the caller's.
  static std::shared_ptr<Block> adopt(int descriptor);
};

enum class RangeKind { allocated, opened, mapped };

/// Device addresses that are in use.
struct Range {
  std::size_t bytes = 0;
  std::shared_ptr<Block> block;
  RangeKind kind = RangeKind::allocated;
  std::uint64_t id = 0;
  bool accessible = true;
  cuda::IpcHandle name{};
  int opener = -1;  ///< the device that has opened it: once each
};

struct HostRange {
  std::size_t bytes = 0;
  bool managed = false;
  bool registered = false;
};

struct Handle {
  std::shared_ptr<Block> block;
  int count = 1;
};

/// Bytes that the processor can reach, and what keeps them there.
struct Reached {
  std::byte* bytes = nullptr;
  std::shared_ptr<Block> block;
};

/// A NIC's way into device memory.
struct NicMapping {
  const void* nic = nullptr;
  std::shared_ptr<Block> block;
  std::size_t start = 0;  ///< in the block
};

/// What a NIC has written and the device does not see yet.
struct HeldWrite {
  const NicMapping* mapping = nullptr;
  std::size_t at = 0;
  std::vector<std::byte> bytes;
};

struct State {
  std::mutex mutex;
  bool started = false;
  int devices = 2;
  bool stream_writes = true;
  bool p2p_atomics = true;
  int version = 13;
  std::map<Address, Range> ranges;
  std::map<Address, HostRange> hosts;
  std::map<Address, std::size_t> reservations;
  std::map<cuda::MemoryHandle, Handle> handles;
  std::uint64_t next_id = 1;
  std::set<void*> streams;
  std::set<void*> events;
  std::atomic<unsigned> copy_us{0};
  std::atomic<std::uint64_t> copies{0};
  std::atomic<std::uint64_t> failing_copy{0};
  std::atomic<bool> kernel{false};
  std::atomic<std::uint64_t> held_up{0};
  std::atomic<bool> dma_bufs{true};
  std::atomic<int> rdma_ordering{0};
  std::atomic<bool> rdma_flush{true};
  std::atomic<std::uint64_t> flushes{0};
  std::atomic<std::uint64_t> questions{0};  ///< whose memory an address is
  std::atomic<std::uint64_t> freed_under_nic{0};
  std::set<NicMapping*> nic_mappings;
  std::deque<HeldWrite> held_writes;
  std::atomic<Code> failure[kMostDevices]{};  ///< what every later call on the device says

  /// With the mutex held.
  std::map<Address, Range>::iterator find(Address address);
  std::map<Address, HostRange>::iterator find_host(Address address);
  /// Device memory; with `pageable` any memory of the host as well, else pinned and managed memory.
  std::optional<Reached> reach(Address address, std::size_t bytes, bool pageable);
  /// What NICs have written to the device becomes visible: all of it, or that of one NIC, or through one mapping.
  void land(int device, const void* nic = nullptr, const NicMapping* mapping = nullptr);
};

State& state();
/// A kernel runs: a call that waits for it, as the driver's calls that make something may, is counted and to fail.
bool kernel_holds_up();
/// Addresses that nothing can touch; 0: none left.
Address reserve(std::size_t bytes);
void unreserve(Address address, std::size_t bytes);
/// The device of the calling thread's context; -1: none is current.
int current_device();
std::size_t round_up(std::size_t bytes, std::size_t unit);

}  // namespace cuda_double
