/// What Railyard needs of GPUs: whose memory an address is, memory of other processes, copies by the copy engines. The
/// vendor's driver library is found at run time; nothing here needs its headers or a GPU to build.
///
/// Nothing here launches a kernel or waits for one: a user's kernels may be spinning on a signal that only we can set.
/// Every call may be made from any thread, whatever device that thread uses; what is current there stays so.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "railyard/result.hpp"

namespace railyard::accelerator {

/// An allocation of device memory. Memory that the processor may touch (pinned, managed) is host memory here.
struct Allocation {
  int device = -1;
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::uint64_t id = 0;  ///< another allocation at the same address has another one
};

/// Names an allocation to other processes on this machine. Plain bytes: it travels in messages, and nothing of it is
/// believed.
struct ShareHandle {
  enum class Kind : std::uint8_t { none, ipc, descriptor };
  Kind kind = Kind::none;
  std::array<std::byte, 64> ipc{};          ///< Kind::ipc: the driver's own name for it
  std::int32_t pid = 0;                     ///< whose
  std::int32_t descriptor = -1;             ///< Kind::descriptor: which one there
  std::uint64_t owner = 0;                  ///< a random number of that process: pids are not unique among containers
  std::array<std::byte, 16> device_uuid{};  ///< the GPU, whatever number it has in either process
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;
};

/// Device memory that this process has mapped: a peer's allocation, or one of its own. Unmapped at the end; the memory
/// stays as long as anybody has it mapped.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual std::span<std::byte> memory() const = 0;  ///< device addresses: not for the processor
  virtual int device() const = 0;
};

/// Keeps what a ShareHandle names open for peers. Ended with it: peers that have it mapped keep their mapping.
class Shared {
 public:
  virtual ~Shared() = default;
  virtual const ShareHandle& handle() const = 0;
};

/// Host memory that devices reach too. Freed at the end.
class Pinned {
 public:
  virtual ~Pinned() = default;
  virtual std::span<std::byte> memory() const = 0;
  virtual std::byte* device_address() const = 0;  ///< what kernels call it
};

/// Device memory as NICs register it: a range of whole pages of the host, with what was asked for inside.
struct DmaBuf {
  Fd descriptor;
  std::uint64_t offset = 0;  ///< of the memory in the range
};

/// How the writes of NICs to a device's memory become visible to its kernels, as the platform says.
enum class NicWrites : std::uint8_t {
  in_order,  ///< by themselves: whoever learns of one sees it
  by_flush,  ///< `flush_writes`, once the NIC has told of them
  by_read,   ///< a read of the device's memory by the same NIC
};

/// A private, non-blocking queue of copies on one device, done in order. One thread at a time.
class CopyQueue {
 public:
  /// Waits for what is under way.
  virtual ~CopyQueue() = default;
  virtual int device() const = 0;
  /// Begins a copy between any two of: device memory, mapped memory of peers, pinned host memory. Its number; numbers
  /// count up by one.
  virtual Result<std::uint64_t> copy(void* to, const void* from, std::size_t bytes) = 0;
  /// Stores eight aligned bytes into device memory (or pinned host memory), after everything before it. `with_next`: it
  /// may leave together with what is begun next; at the latest when `completed` is asked.
  virtual Result<std::uint64_t> store(void* to, std::uint64_t value, bool with_next = false) = 0;
  /// A copy within the device, which makes the driver load whatever such copies need.
  virtual Result<std::uint64_t> warm_up() = 0;
  /// Copies up to this number are done: their bytes are visible to the processor and to kernels. A load; now and then a
  /// look at the device. An error is the device's: nothing more will be done.
  virtual Result<std::uint64_t> completed() = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;
  virtual std::string_view name() const = 0;  ///< "cuda"
  virtual int devices() const = 0;
  virtual std::string bus_id(int device) const = 0;  ///< "0000:1b:00.0"
  /// The allocation around an address; nothing for host memory and for what is not mapped at all. Memory of several
  /// physical allocations in one range (expandable segments) is as many allocations here.
  virtual std::optional<Allocation> find(const void* address) = 0;
  virtual Result<std::unique_ptr<Shared>> share(const Allocation& allocation) = 0;
  /// Maps a peer's, to be used by queues of `device`; -1: of the device that holds it. Not for handles of this process.
  virtual Result<std::unique_ptr<Mapping>> map(const ShareHandle& handle, int device = -1) = 0;
  /// Memory of our own that peers can map (`share`) and NICs can register, at least so many bytes; what it holds is not
  /// said. A peer that has mapped it keeps it, whatever becomes of the owner.
  virtual Result<std::unique_ptr<Mapping>> allocate(int device, std::size_t bytes) = 0;
  /// Whether atomics of kernels on `device` in memory of `owner` are atomic with those of every other GPU.
  virtual bool atomics_reach(int device, int owner) = 0;
  virtual Result<std::unique_ptr<Pinned>> allocate_pinned(std::size_t bytes) = 0;
  /// Makes host memory that is there already reachable for devices, until the end.
  virtual Result<std::unique_ptr<Pinned>> pin(std::span<std::byte> memory) = 0;
  virtual Result<std::unique_ptr<CopyQueue>> open_queue(int device) = 0;
  /// Whether NICs can reach the device's memory by dma-buf descriptors.
  virtual bool has_dma_bufs(int device) = 0;
  /// A descriptor of the pages that hold this memory of one allocation. `unsupported`: the device has none.
  virtual Result<DmaBuf> dma_buf(std::span<std::byte> memory) = 0;
  virtual NicWrites nic_writes(int device) = 0;
  /// What NICs have written to the device's memory is visible to its kernels when this returns. Some microseconds.
  virtual Result<void> flush_writes(int device) = 0;
};

/// The machine's; null where there is no GPU, no driver, or RAILYARD_GPU=off. Found at the first call, and not before:
/// a process that never brings device memory never loads it.
Driver* driver();
/// The same, if it was found already, or if `may_have_gpus` has found its library and the program has started it: a
/// pointer can be device memory only then. Starts nothing, so that children that are forked later may. A few
/// nanoseconds.
Driver* loaded_driver();
/// Whether the program has, or may yet start, a driver: looks for its library, and loads it on a machine with GPUs. For
/// when something is opened or registered.
bool may_have_gpus();

}  // namespace railyard::accelerator
