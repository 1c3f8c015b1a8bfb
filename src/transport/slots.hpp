/// Slots: operations that complete out of sequence (gets, fetches, relaxed puts), each named by slot and number.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/failures.hpp"

namespace railyard::transport {

struct Flow;

/// A ticket names a slot and the number that the slot had: numbers count all that ever took one, so none comes twice.
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
    bool withdrawn = false;  ///< the memory for the old value was taken back
    int peer = -1;
    std::uint32_t parts = 1;                    ///< operations that end it together
    FailureCause failure = FailureCause::none;  ///< of the first part that failed
  };

  bool empty() const { return free_.empty(); }
  /// Takes a slot; there must be one.
  std::uint32_t take(const Content& content) {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    slots_[index].content = content;
    // The progress lock's holder is the only writer.
    taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    slots_[index].number.store(taken_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    return index;
  }
  /// Ends the operation in the slot: its tickets answer from now on, and the slot may be used again.
  void finish(std::uint32_t index, FailureCause cause) {
    Slot& slot = slots_[index];
    if (cause != FailureCause::none)
      failures_.record({number(index), slot.content.peer, 0, cause, false, slot.content.flow});
    slot.content = {};
    // Release: whoever sees that the number is gone sees the bytes or the value that the operation brought.
    slot.number.store(0, std::memory_order_release);
    free_.push_back(index);
  }
  /// Whether anything ever took a slot under that number. Any thread, of a number it was given.
  bool was_taken(std::uint64_t number) const { return number <= taken_.load(std::memory_order_relaxed); }
  Content& content(std::uint32_t index) { return slots_[index].content; }
  std::uint64_t number(std::uint32_t index) const { return slots_[index].number.load(std::memory_order_relaxed); }
  bool done(std::uint32_t index, std::uint64_t number) const {
    return slots_[index].number.load(std::memory_order_acquire) != number;
  }
  /// How the operations that are done have failed, by number.
  FailureLog& failures() const { return failures_; }

  /// On the wire: index and the low bits of the number; never 0.
  std::uint32_t request(std::uint32_t index) const {
    return ((index + 1U) << 16U) | static_cast<std::uint16_t>(number(index));
  }
  /// The slot that a request names, if it is still under way for that flow.
  bool find(std::uint32_t request, const Flow* flow, std::uint32_t count, std::uint32_t& index) const {
    index = (request >> 16U) - 1U;
    return index < count && slots_[index].content.flow == flow && slots_[index].content.fetch &&
           static_cast<std::uint16_t>(number(index)) == static_cast<std::uint16_t>(request);
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> number{0};  ///< of what is in it; 0: nothing
    Content content;
  };
  std::unique_ptr<Slot[]> slots_;
  std::vector<std::uint32_t> free_;
  std::atomic<std::uint64_t> taken_{0};
  mutable FailureLog failures_;
};

/// How many operations may be under way out of sequence, in all.
inline constexpr std::uint32_t kSlots = 1024;

}  // namespace railyard::transport
