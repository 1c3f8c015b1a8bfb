/// One producer, one consumer, in shared memory: one-line records, and an area for payloads that are longer.
///
/// How a record is seen. Records are numbered from 1. The consumer looks for the next number in two places: the line
/// after the last record, and the first line. Numbers do not come again, and payloads never lie where words are, so
/// nothing left over can pass for a record. The producer stores everything else first and the word last, with release;
/// one that dies at any instruction before that leaves the old word: the record never happened.
///
/// Why two places. A line that both sides touched a moment ago moves from one core's cache to the other's at a fraction
/// of what one costs that has sunk deeper. So the producer goes back to the first line, and the payloads to the start
/// of their area, whenever it may: at once when everything was consumed, else when a few lines are used up and the
/// first ones are free again. Only behind a consumer that is late does it go on to the ring's end. A *run* is what lies
/// between two such starts; at most two are in use at once, and the new one stays below what is left of the old.
///
/// What is free, the producer learns from the records that come back (Record::freed), or by a look at the count that
/// the consumer keeps, once in many records.
///
/// What the other side wrote is checked before it is used: a length that cannot be, or a free count that runs ahead,
/// makes the ring `broken`.
#pragma once

#include <algorithm>
#include <vector>

#include "shm/copy.hpp"
#include "shm/layout.hpp"

namespace railyard::shm {

inline std::atomic_ref<std::uint64_t> word_of(Record& record) { return std::atomic_ref<std::uint64_t>(record.word); }

/// What a run uses before it looks for a new start: about what stays in the nearest cache of both sides.
inline constexpr std::size_t kRunRecords = 256;
inline constexpr std::size_t kRunBytes = 12 * 1024;

/// A record being written: its line, and room for its payload (null where that lies in the line).
struct Reservation {
  Record* record = nullptr;
  std::byte* payload = nullptr;
};

class Producer {
 public:
  Producer() = default;
  Producer(std::byte* ring, std::uint32_t bytes, RingControl* control)
      : records_(reinterpret_cast<Record*>(ring)),
        data_(ring + records_bytes(bytes)),
        control_(control),
        starts_(record_count(bytes)),
        data_bytes_(data_ring_bytes(bytes)),
        free_slots_(std::min(starts_.size(), kRunRecords)),
        free_bytes_(std::min(data_bytes_, kRunBytes)),
        most_payload_(shm::most_payload(bytes)) {}

  /// A record whose payload, at most Record::kShort, lies in its line; null when there is no room.
  Record* reserve_line() { return reserve_lines(0) ? &records_[slot_] : nullptr; }
  /// A record with `bytes` of payload, at most `most_payload()`.
  Reservation reserve(std::size_t bytes) {
    if (!reserve_lines(whole_lines(bytes))) return {};
    return {&records_[slot_], data_ + data_at_};
  }
  /// Publishes what was reserved last, with everything else of it in place; and what was freed of the ring `claim`.
  void publish(Word word, std::uint32_t claim = 0, std::uint32_t freed = 0) {
    Record& record = records_[slot_];
    record.extent = Extent::pack(word.bytes, claim);
    record.freed = freed;
    word_of(record).store(word.pack(++at_), std::memory_order_release);
    starts_[slot_++] = static_cast<std::uint32_t>(data_at_);
    data_at_ += word.lines();
  }
  /// Puts bytes into a reserved payload. A line that is dirty in a far core's cache costs its reader several times what
  /// one in memory does; between near cores it is the other way round (docs/shm.md has the figures).
  void write(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes >= kLeastPast) {
      if (++long_writes_ % kWritesPerLook == 0) look_for_freed();
      if (far() || bytes >= kPastChunk) {
        copy_past_cache(to, from, bytes);
        return;
      }
    }
    copy_bytes(to, from, bytes);
  }

  /// The consumer has said what it freed: the lower half of the count.
  void told(std::uint32_t freed) {
    const std::uint64_t more = static_cast<std::uint32_t>(freed - static_cast<std::uint32_t>(freed_));
    // Older news than what the count told already is none.
    if (more <= at_ - freed_) freed_ += more;
  }

  std::size_t most_payload() const { return most_payload_; }
  /// How long the chunks of `total` bytes should be: one is read while the next is written. What fits in the nearest
  /// caches goes through them in small ones; what goes past the cache has a wait at the end of each.
  std::size_t chunk_bytes(std::size_t total) const {
    return std::min(most_payload_, far() || total > kMostCached ? kPastChunk : kCachedChunk);
  }
  bool broken() const { return broken_; }

 private:
  bool far() const { return line_ticks_ > kFarTicks; }
  static constexpr std::size_t kCachedChunk = 2048;
  static constexpr std::size_t kPastChunk = 8192;
  static constexpr std::size_t kMostCached = 32 * 1024;
  /// Lines that are looked for again, in vain so far, after so much more was sent.
  static constexpr std::size_t kMoreRecords = 16;
  static constexpr std::size_t kMoreBytes = 8 * 1024;
  static constexpr std::size_t kLeastPast = 2048;      ///< shorter payloads never go past the cache
  static constexpr std::uint32_t kWritesPerLook = 32;  ///< threads move: the distance is looked at again
  static constexpr std::uint64_t kFarTicks = 230;      ///< of a line that the consumer wrote

  bool reserve_lines(std::size_t lines) {
    if (freed_ == at_) {
      start_run();
      return true;
    }
    return (slot_ < slot_limit_ && data_at_ + lines <= data_limit_) || find_room(lines);
  }

  void start_run() {
    run_ = at_;
    slot_ = 0;
    data_at_ = 0;
    slot_limit_ = free_slots_;
    data_limit_ = free_bytes_;
  }
  /// The old run's oldest record still in use; none: its lines are all free.
  bool old_run_lives() const { return freed_ < run_; }
  std::size_t oldest() const { return static_cast<std::size_t>(freed_ - old_run_); }
  std::size_t record_room() const { return old_run_lives() ? oldest() : starts_.size(); }
  std::size_t data_room() const { return old_run_lives() ? starts_[oldest()] : data_bytes_; }
  void set_limits() {
    slot_limit_ = std::min(record_room(), free_slots_);
    data_limit_ = std::min(data_room(), free_bytes_);
  }
  bool fits(std::size_t lines) const { return slot_ < slot_limit_ && data_at_ + lines <= data_limit_; }

  /// A new start below what is left of this run, if its first lines are free.
  bool restart(std::size_t lines) {
    if (freed_ == at_) {
      start_run();
      return true;
    }
    if (freed_ <= run_ || lines > starts_[static_cast<std::size_t>(freed_ - run_)]) return false;
    old_run_ = run_;
    start_run();
    set_limits();
    return true;
  }
  bool find_room(std::size_t lines) {
    for (const bool look : {false, true}) {
      if (look && !look_for_freed()) return false;
      if (restart(lines)) return true;
      set_limits();
      if (fits(lines)) return true;
    }
    // The consumer is late: on towards the ring's end, as far as there is room.
    slot_limit_ = std::min(record_room(), slot_ + kMoreRecords);
    data_limit_ = std::min(data_room(), data_at_ + lines + kMoreBytes);
    return fits(lines);
  }
  /// Reads the consumer's count. The line comes from its core: how long that takes tells how far it is.
  bool look_for_freed() {
    const std::uint64_t begin = ticks();
    const std::uint64_t freed = control_->consumed.load(std::memory_order_acquire);
    const std::uint64_t taken = ticks() - begin;
    if (freed > at_) {
      broken_ = true;
      return false;
    }
    // One that did not change is in this core's cache still; and an interruption is not a distance.
    if (freed != seen_) line_ticks_ = (line_ticks_ * 3 + std::min(taken, 4 * kFarTicks)) / 4;
    seen_ = freed;
    // A record that came back may have told more than this says.
    freed_ = std::max(freed_, freed);
    return true;
  }

  Record* records_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t at_ = 0;     ///< records published
  std::uint64_t freed_ = 0;  ///< of these, known to be consumed
  std::size_t slot_ = 0;     ///< where the next record goes
  std::size_t data_at_ = 0;  ///< where the next payload goes
  std::size_t slot_limit_ = 0;
  std::size_t data_limit_ = 0;
  std::uint64_t run_ = 0;      ///< records before this run
  std::uint64_t old_run_ = 0;  ///< records before the run of which something may be left
  RingControl* control_ = nullptr;
  std::vector<std::uint32_t> starts_;  ///< where the payload of each line's record begins
  std::size_t data_bytes_ = 0;
  std::size_t free_slots_ = 0;  ///< what a run may use when nothing of an old one is left
  std::size_t free_bytes_ = 0;
  std::size_t most_payload_ = 0;
  std::uint64_t seen_ = 0;        ///< the consumer's count at the last look
  std::uint64_t line_ticks_ = 0;  ///< smoothed: what a line of the consumer's costs
  std::uint32_t long_writes_ = 0;
  bool broken_ = false;
};

/// A record at the head of a ring, checked. The payload lies in the ring until `pop`.
struct Arrival {
  const Record* record;
  Word word;
  const std::byte* payload;
};

class Consumer {
 public:
  Consumer() = default;
  Consumer(std::byte* ring, std::uint32_t bytes, RingControl* control)
      : records_(reinterpret_cast<Record*>(ring)),
        next_(records_),
        end_(records_ + record_count(bytes)),
        data_(ring + records_bytes(bytes)),
        control_(control),
        data_bytes_(data_ring_bytes(bytes)),
        most_payload_(shm::most_payload(bytes)) {}

  bool empty() const { return !holds_next(*next_) && !holds_next(*records_); }
  /// Nothing to take, and nothing to tell.
  bool quiet() const { return empty() && told_ == at_; }

  /// The oldest record; false when there is none, or when the ring is broken.
  bool peek(Arrival& arrival) {
    if (!holds_next(*next_)) {
      if (!holds_next(*records_)) {
        // The producer may be waiting for the last few.
        if (told_ != at_) tell();
        return false;
      }
      next_ = records_;
    }
    // The first line's record begins a run.
    if (next_ == records_) data_at_ = 0;
    // A stream: the one after the next is on its way here while this one is taken.
    __builtin_prefetch(next_ + 2);
    arrival.record = next_;
    const std::uint64_t word = word_of(*next_).load(std::memory_order_acquire);
    arrival.word = Word::unpack(word, Extent::bytes_of(next_->extent));
    if (arrival.word.in_first()) {
      arrival.payload = next_->payload.data();
      next_lines_ = 0;
      broken_ = arrival.word.bytes > Record::kShort;
    } else {
      arrival.payload = data_ + data_at_;
      next_lines_ = arrival.word.lines();
      broken_ = arrival.word.bytes > most_payload_ || data_at_ + next_lines_ > data_bytes_;
    }
    return !broken_;
  }

  /// Frees the record that `peek` showed.
  void pop() {
    ++at_;
    if (++next_ == end_) next_ = records_;
    data_at_ += next_lines_;
    untold_bytes_ += next_lines_;
    if (at_ - told_ >= kRunRecords / 4 || untold_bytes_ >= kRunBytes / 4) tell();
  }

  /// For Record::freed.
  std::uint32_t freed() const { return static_cast<std::uint32_t>(at_); }
  bool broken() const { return broken_; }

 private:
  bool holds_next(Record& record) const {
    return Word::number_of(word_of(record).load(std::memory_order_relaxed)) == ((at_ + 1) & Word::kNumberMask);
  }
  void tell() {
    told_ = at_;
    untold_bytes_ = 0;
    control_->consumed.store(at_, std::memory_order_release);
  }

  Record* records_ = nullptr;
  Record* next_ = nullptr;  ///< the line after the last record
  Record* end_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t at_ = 0;        ///< records consumed
  std::uint64_t told_ = 0;      ///< what the producer can see of that
  std::size_t data_at_ = 0;     ///< the end of the last payload
  std::size_t next_lines_ = 0;  ///< what the record that was shown takes
  std::size_t untold_bytes_ = 0;
  RingControl* control_ = nullptr;
  std::size_t data_bytes_ = 0;
  std::size_t most_payload_ = 0;
  bool broken_ = false;
};

/// For the next owner: no word of an earlier one is left.
inline void clear_ring(std::byte* ring, std::uint32_t bytes) {
  auto* const records = reinterpret_cast<Record*>(ring);
  for (std::size_t index = 0; index < record_count(bytes); ++index)
    word_of(records[index]).store(0, std::memory_order_relaxed);
}

}  // namespace railyard::shm
