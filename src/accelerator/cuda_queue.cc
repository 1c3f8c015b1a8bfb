/// Copies by the copy engines, on a stream of our own that no other stream waits for.
#include <sched.h>

#include <array>
#include <deque>
#include <utility>

#include "accelerator/cuda.hpp"
#include "base/clock.hpp"

namespace railyard::accelerator::cuda {

namespace {

constexpr std::int64_t kLookInterval = 1'000'000;  ///< nanoseconds between looks for errors of the device
constexpr unsigned kMostLoads = 1024;              ///< or as many loads
constexpr unsigned kMostWrites = 8;                ///< that leave together
constexpr std::size_t kSlots = 512;                ///< values of stores under way, where streams do not write them
constexpr const char* kAdvice =
    "nothing more can be done on this GPU by this process; a kernel or a copy used memory that is not there";

/// How the numbers of finished copies get here: the stream writes each to a word, or events are asked one by one.
class StreamQueue final : public CopyQueue {
 public:
  StreamQueue(CudaDriver& driver, int device, CudaContext context, bool writes_values)
      : driver_(driver), calls_(driver.calls()), device_(device), context_(context), writes_values_(writes_values) {}

  ~StreamQueue() override {
    while (stream_ != nullptr && !failure_) {
      auto done = completed();
      if (!done || *done == submitted_) break;
      ::sched_yield();
    }
    {
      const Current current(calls_, context_);
      if (stream_ != nullptr) calls_.stream_destroy(stream_);
      for (const Pending& pending : pending_) calls_.event_destroy(pending.event);
      for (Event event : free_events_) calls_.event_destroy(event);
      if (scratch_ != 0) calls_.device_free(scratch_);
    }
    // A stream that failed may have left a write under way: such a word is not used again.
    if (word_.host != nullptr && !failure_) driver_.return_word(word_);
  }

  Result<void> open() {
    const Current current(calls_, context_);
    int least = 0;
    int greatest = 0;
    Code code = current.code();
    if (code == kSuccess) code = calls_.context_priorities(&least, &greatest);
    if (code == kSuccess) code = calls_.stream_create(&stream_, kStreamNonBlocking, greatest);
    if (code != kSuccess) return driver_.error(code, "cuStreamCreate", device_, "no queue for copies");
    if (writes_values_) {
      auto word = driver_.take_word(device_);
      if (!word) return std::move(word.error());
      word_ = *word;
    } else {
      auto slots = driver_.allocate_pinned(kSlots * sizeof(std::uint64_t));
      if (!slots) return std::move(slots.error());
      slots_ = std::move(*slots);
    }
    return {};
  }

  int device() const override { return device_; }

  Result<std::uint64_t> copy(void* to, const void* from, std::size_t bytes) override {
    if (failure_) return failure_->copy();
    const Current current(calls_, context_);
    Code code = current.code();
    if (code == kSuccess) code = flush();
    if (code == kSuccess && bytes > 0) code = calls_.copy(as_address(to), as_address(from), bytes, stream_);
    if (code != kSuccess) {
      return driver_.error(code, "cuMemcpyAsync", device_, "one of the ranges is not device, mapped or pinned memory");
    }
    return number();
  }

  Result<std::uint64_t> store(void* to, std::uint64_t value, bool with_next) override {
    if (failure_) return failure_->copy();
    if (as_address(to) % sizeof(value) != 0)
      return Error(Status::invalid, "a store of eight bytes that is not aligned");
    if (writes_values_) {
      writes_[held_++] = {.address = as_address(to), .value = value};
      if (with_next && held_ + 1 < kMostWrites) return submitted_ + 1;
    }
    const Current current(calls_, context_);
    Code code = current.code();
    if (!writes_values_) {
      if (submitted_ - done_ >= kSlots) return Error(Status::busy);
      const std::size_t slot = submitted_ % kSlots;
      auto* const values = reinterpret_cast<std::uint64_t*>(slots_->memory().data());
      values[slot] = value;
      if (code == kSuccess) code = calls_.copy(as_address(to), as_address(values + slot), sizeof(value), stream_);
    }
    if (code != kSuccess) {
      return driver_.error(code, "cuMemcpyAsync", device_, "the word is not device, mapped or pinned memory");
    }
    return number(held_ == 1);
  }

  Result<std::uint64_t> warm_up() override {
    constexpr std::size_t kScratch = 256;
    if (scratch_ == 0) {
      const Current current(calls_, context_);
      Code code = current.code();
      if (code == kSuccess) code = calls_.device_allocate(&scratch_, kScratch);
      if (code != kSuccess) return driver_.error(code, "cuMemAlloc", device_, "its memory is full");
    }
    return copy(as_pointer(scratch_), as_pointer(scratch_ + kScratch / 2), kScratch / 2);
  }

  Result<std::uint64_t> completed() override {
    if (failure_) return failure_->copy();
    if (held_ != 0) {
      const Current current(calls_, context_);
      if (auto left = number(); !left) return left;
    }
    // Acquires the bytes of every copy up to this number: the stream stores it after them.
    if (writes_values_) {
      done_ = word_.host->load(std::memory_order_acquire);
    } else {
      ask_events();
    }
    if (!failure_ && done_ != submitted_) look();
    if (failure_) return failure_->copy();
    return done_;
  }

 private:
  struct Pending {
    std::uint64_t number = 0;
    Event event = nullptr;
  };

  /// Hands over the writes that were held back.
  Code flush() {
    const unsigned count = std::exchange(held_, 0);
    return count == 0 ? kSuccess : calls_.stream_writes(stream_, count, writes_.data(), 0);
  }

  /// Numbers what was begun last. The work is on the stream: if its number cannot follow, nobody would ever know.
  /// `alone`: one write and its number leave together, so that if they are refused nothing has begun.
  Result<std::uint64_t> number(bool alone = false) {
    ++submitted_;
    Code code = kSuccess;
    if (writes_values_) {
      writes_[held_++] = {.address = word_.device, .value = submitted_};
      code = flush();
      if (code == kInvalidValue && alone) {
        --submitted_;
        return driver_.error(code, "cuStreamBatchMemOp", device_, "the word is not device, mapped or pinned memory");
      }
    } else {
      Event event = nullptr;
      if (!free_events_.empty()) {
        event = free_events_.back();
        free_events_.pop_back();
      } else {
        code = calls_.event_create(&event, kEventDisableTiming);
      }
      if (code == kSuccess) code = calls_.event_record(event, stream_);
      if (event != nullptr) pending_.push_back({submitted_, event});
    }
    if (code != kSuccess) {
      fail(code, "cuStreamBatchMemOp");
      return failure_->copy();
    }
    return submitted_;
  }

  void ask_events() {
    if (pending_.empty()) return;
    const Current current(calls_, context_);
    while (!pending_.empty()) {
      const Code code = calls_.event_query(pending_.front().event);
      if (code == kNotReady) return;
      if (code != kSuccess) return fail(code, "cuEventQuery");
      done_ = pending_.front().number;
      free_events_.push_back(pending_.front().event);
      pending_.pop_front();
    }
  }

  /// An error of the device leaves the word as it is: asked for now and then.
  void look() {
    const std::int64_t now = clock_.now();
    if (++loads_ < kMostLoads && now - looked_ < kLookInterval) return;
    loads_ = 0;
    looked_ = now;
    const Current current(calls_, context_);
    const Code code = calls_.stream_query(stream_);
    if (code != kSuccess && code != kNotReady) fail(code, "cuStreamQuery");
  }

  void fail(Code code, const char* call) { failure_ = driver_.error(code, call, device_, kAdvice); }

  CudaDriver& driver_;
  const Library& calls_;
  const int device_;
  const CudaContext context_;
  const bool writes_values_;
  Stream stream_ = nullptr;
  std::uint64_t submitted_ = 0;
  std::uint64_t done_ = 0;
  ProgressWord word_;
  std::array<StreamWrite, kMostWrites> writes_{};
  unsigned held_ = 0;
  std::unique_ptr<Pinned> slots_;
  Address scratch_ = 0;
  std::deque<Pending> pending_;
  std::vector<Event> free_events_;
  std::optional<Error> failure_;
  SteadyClock clock_;
  std::int64_t looked_ = 0;
  unsigned loads_ = 0;
};

}  // namespace

Result<std::unique_ptr<CopyQueue>> open_copy_queue(CudaDriver& driver, int device, CudaContext context,
                                                   bool writes_values) {
  auto queue = std::make_unique<StreamQueue>(driver, device, context, writes_values);
  if (auto opened = queue->open(); !opened) return std::move(opened.error());
  return std::unique_ptr<CopyQueue>(std::move(queue));
}

}  // namespace railyard::accelerator::cuda
