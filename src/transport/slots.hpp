/// Slots: operations that complete out of sequence (gets, fetches, relaxed puts), each named by slot and generation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "railyard/result.hpp"

namespace railyard::transport {

struct Flow;

class Slots {
 public:
  explicit Slots(std::uint32_t count) : slots_(std::make_unique<Slot[]>(count)) {
    free_.reserve(count);
    for (std::uint32_t i = count; i-- > 0;) free_.push_back(i);
  }

  struct Content {
    Flow* flow = nullptr;
    void* before = nullptr;  ///< fetch: where the old value goes
    std::uint32_t width = 0;
    bool fetch = false;
  };

  bool empty() const { return free_.empty(); }
  /// Takes a slot; there must be one.
  std::uint32_t take(const Content& content) {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    slots_[index].content = content;
    return index;
  }
  /// Ends the operation in the slot: its tickets answer from now on, and the slot may be used again.
  void finish(std::uint32_t index, Status status) {
    Slot& slot = slots_[index];
    const std::uint64_t generation = slot.generation.load(std::memory_order_relaxed);
    if (status != Status::ok)
      slot.failed.store(generation << kStatusBits | static_cast<std::uint64_t>(status), std::memory_order_relaxed);
    slot.content = {};
    // Release: whoever sees the new generation sees the bytes or the value that the operation brought.
    slot.generation.store(generation + 1, std::memory_order_release);
    free_.push_back(index);
  }
  const Content& content(std::uint32_t index) const { return slots_[index].content; }
  std::uint64_t generation(std::uint32_t index) const {
    return slots_[index].generation.load(std::memory_order_relaxed);
  }
  bool done(std::uint32_t index, std::uint64_t generation) const {
    return slots_[index].generation.load(std::memory_order_acquire) != generation;
  }
  /// How an operation that is done has ended.
  Status status(std::uint32_t index, std::uint64_t generation) const {
    const std::uint64_t failed = slots_[index].failed.load(std::memory_order_relaxed);
    if (failed >> kStatusBits != generation) return Status::ok;
    return static_cast<Status>(failed & ((1U << kStatusBits) - 1));
  }

  /// On the wire: index and the low bits of the generation; never 0.
  std::uint32_t request(std::uint32_t index) const {
    return ((index + 1U) << 16U) | static_cast<std::uint16_t>(generation(index));
  }
  /// The slot that a request names, if it is still under way for that flow.
  bool find(std::uint32_t request, const Flow* flow, std::uint32_t count, std::uint32_t& index) const {
    index = (request >> 16U) - 1U;
    return index < count && slots_[index].content.flow == flow && slots_[index].content.fetch &&
           static_cast<std::uint16_t>(generation(index)) == static_cast<std::uint16_t>(request);
  }

 private:
  static constexpr int kStatusBits = 8;
  struct Slot {
    std::atomic<std::uint64_t> generation{1};
    std::atomic<std::uint64_t> failed{0};  ///< the last generation that failed, and how
    Content content;
  };
  std::unique_ptr<Slot[]> slots_;
  std::vector<std::uint32_t> free_;
};

/// How many operations may be under way out of sequence, in all.
inline constexpr std::uint32_t kSlots = 1024;

}  // namespace railyard::transport
