/// Copies to and from device memory, for rails that move bytes themselves: a queue for each device and a few pinned
/// buffers that host memory passes through. One thread at a time, as with everything of a rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "accelerator/accelerator.hpp"
#include "railyard/result.hpp"

namespace railyard::fabric {

class DeviceCopies {
 public:
  static constexpr std::size_t kBounceBytes = std::size_t{256} * 1024;
  static constexpr std::size_t kMostBounces = 16;

  /// A copy under way.
  struct Ticket {
    int device = -1;
    std::uint64_t number = 0;
  };
  enum class State : std::uint8_t { under_way, done, failed };

  explicit DeviceCopies(std::size_t most_bounces = kMostBounces) : most_bounces_(most_bounces) {}

  /// Opens all that copies of this device need, pinned buffers too, and has it make a first one. Nothing below opens
  /// anything: while a kernel runs, the driver may let a new stream or pinned memory wait for it, and the kernel may be
  /// waiting for a copy.
  Result<void> prepare(int device);
  /// Begins a copy by the engines of `device`; either side may be device memory, mapped memory of a peer, or a bounce
  /// buffer.
  Result<Ticket> copy(int device, void* to, const void* from, std::size_t bytes);
  /// Begins to store eight aligned bytes into memory of `device`, as one write. `with_next`: see CopyQueue.
  Result<Ticket> store(int device, void* to, std::uint64_t value, bool with_next = false);
  State state(const Ticket& ticket);
  /// Waits, for as long as the device takes.
  State wait(const Ticket& ticket);

  /// Prepares, copies and waits. `to_device`, `from_device`: the GPU that side is memory of; -1: host memory, which
  /// passes through a pinned buffer. Not both -1.
  Result<void> copy_now(void* to, int to_device, const void* from, int from_device, std::size_t bytes);

  /// A pinned buffer of kBounceBytes; null: all are in use.
  std::byte* take_bounce();
  void give_bounce(std::byte* bounce) { free_.push_back(bounce); }
  bool has_free_bounce() const { return !free_.empty(); }

 private:
  struct Queue {
    std::unique_ptr<accelerator::CopyQueue> queue;
    bool warm = false;
    std::uint64_t done = 0;
    bool failed = false;
  };
  Result<Queue*> queue_of(int device);
  Result<void> allocate_bounces(accelerator::Driver& driver);

  const std::size_t most_bounces_;
  std::unique_ptr<accelerator::Pinned> pinned_;  ///< all buffers
  /// After the buffers: a queue waits for its copies before they go.
  std::vector<Queue> queues_;  ///< by device
  std::vector<std::byte*> free_;
};

}  // namespace railyard::fabric
