/// One producer, one consumer, in shared memory: a ring of one-line records, and a ring of bytes for their payloads.
///
/// How a record is seen: the consumer looks at the word of the next line. It is this lap's when its check says so; each
/// line is written once a lap and payloads never lie where words are, so nothing left over can pass for a record. The
/// producer stores arguments and payload first and the word last, with release; one that dies at any instruction
/// before that leaves the old word: the record never happened. A waiting consumer reads its own cached copy of the line
/// until the producer takes the line: a short message moves one line, once. Frees are published for a quarter of the
/// ring at a time.
///
/// What the other side wrote is checked before it is used: a word that cannot be, or a free count that runs backwards
/// or ahead, makes the ring `broken`.
#pragma once

#include <bit>

#include "fabric/shm/copy.hpp"
#include "fabric/shm/layout.hpp"

namespace railyard::fabric::shm {

inline std::atomic_ref<std::uint64_t> word_of(Record& record) { return std::atomic_ref<std::uint64_t>(record.word); }

/// A record being written: its line, and room for its payload (null where that lies in the line).
struct Reservation {
  Record* record = nullptr;
  std::byte* payload = nullptr;
};

/// Both sides count records and payload lines from the claim on, and both skip the end of the byte ring by one rule.
class RingPosition {
 public:
  RingPosition() = default;
  RingPosition(std::byte* ring, std::uint32_t bytes)
      : records_(reinterpret_cast<Record*>(ring)),
        data_(ring + records_bytes(bytes)),
        mask_(record_count(bytes) - 1),
        shift_(std::countr_zero(record_count(bytes))),
        data_bytes_(data_ring_bytes(bytes)) {}

 protected:
  Record& record() const { return records_[at_ & mask_]; }
  std::uint16_t lap_check() const { return static_cast<std::uint16_t>((at_ >> shift_) + 1); }
  /// What a payload takes: whole lines, and the ring's end if it does not fit there.
  std::size_t data_needed(std::size_t lines) const {
    return data_at_ + lines > data_bytes_ ? data_bytes_ - data_at_ + lines : lines;
  }
  std::byte* data_place(std::size_t lines) const { return data_ + (data_at_ + lines > data_bytes_ ? 0 : data_at_); }
  void advance(std::size_t lines) {
    ++at_;
    if (lines == 0) return;
    const std::size_t needed = data_needed(lines);
    data_total_ += needed;
    data_at_ = data_at_ + lines > data_bytes_ ? lines : data_at_ + lines;
  }

  Record* records_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t mask_ = 0;
  int shift_ = 0;  ///< records of a lap, as a power of two
  std::size_t data_bytes_ = 0;
  std::uint64_t at_ = 0;          ///< records so far
  std::uint64_t data_total_ = 0;  ///< payload bytes so far, with what was skipped
  std::size_t data_at_ = 0;       ///< where the next payload goes
};

class Producer : public RingPosition {
 public:
  Producer() = default;
  Producer(std::byte* ring, std::uint32_t bytes, RingControl* control)
      : RingPosition(ring, bytes), control_(control), most_payload_(shm::most_payload(bytes)) {}

  /// A record whose payload, at most Record::kShort, lies in its line; null when there is no room.
  Record* reserve_line() {
    if (at_ - freed_records_ > mask_ && !look_for_room(0)) return nullptr;
    return &record();
  }
  /// A record with `bytes` of payload, at most `most_payload()`.
  Reservation reserve(std::size_t bytes) {
    const std::size_t needed = data_needed(whole_lines(bytes));
    if ((at_ - freed_records_ > mask_ || data_total_ + needed - freed_data_ > data_bytes_) && !look_for_room(needed))
      return {};
    return {&record(), data_place(whole_lines(bytes))};
  }
  /// Publishes what was reserved last, with everything else of it in place.
  void publish(Word word) {
    word_of(record()).store(word.pack(lap_check()), std::memory_order_release);
    advance(word.in_first() ? 0 : whole_lines(word.bytes));
  }
  /// Puts bytes into a reserved payload.
  void write(std::byte* to, const std::byte* from, std::size_t bytes) { writer_.write(to, from, bytes); }

  std::size_t most_payload() const { return most_payload_; }
  bool broken() const { return broken_; }

 private:
  bool look_for_room(std::size_t needed) {
    const std::uint64_t records = control_->consumed.load(std::memory_order_acquire);
    const std::uint64_t data = control_->consumed_data.load(std::memory_order_acquire);
    if (records > at_ || records < freed_records_ || data > data_total_ || data < freed_data_) {
      broken_ = true;
      return false;
    }
    freed_records_ = records;
    freed_data_ = data;
    return at_ - freed_records_ <= mask_ && data_total_ + needed - freed_data_ <= data_bytes_;
  }

  RingControl* control_ = nullptr;
  std::size_t most_payload_ = 0;
  std::uint64_t freed_records_ = 0;
  std::uint64_t freed_data_ = 0;
  PayloadWriter writer_;
  bool broken_ = false;
};

/// A record at the head of a ring, checked. The payload lies in the ring until `pop`.
struct Arrival {
  const Record* record = nullptr;
  Word word;
  const std::byte* payload = nullptr;
};

class Consumer : public RingPosition {
 public:
  Consumer() = default;
  Consumer(std::byte* ring, std::uint32_t bytes, RingControl* control)
      : RingPosition(ring, bytes), control_(control), most_payload_(shm::most_payload(bytes)) {}

  bool empty() const { return Word::check_of(word_of(record()).load(std::memory_order_relaxed)) != lap_check(); }

  /// The oldest record; false when there is none, or when the ring is broken.
  bool peek(Arrival& arrival) {
    Record& next = record();
    const std::uint64_t packed = word_of(next).load(std::memory_order_acquire);
    if (Word::check_of(packed) != lap_check()) return false;
    arrival.word = Word::unpack(packed);
    arrival.record = &next;
    const bool in_first = arrival.word.in_first();
    if (arrival.word.bytes > (in_first ? Record::kShort : most_payload_)) [[unlikely]] {
      broken_ = true;
      return false;
    }
    next_lines_ = in_first ? 0 : whole_lines(arrival.word.bytes);
    arrival.payload = in_first ? next.payload.data() : data_place(next_lines_);
    return true;
  }

  /// Frees the record that `peek` showed.
  void pop() {
    advance(next_lines_);
    if (at_ - freed_records_ > mask_ / 4 || data_total_ - freed_data_ >= data_bytes_ / 4) free_all();
  }

  bool broken() const { return broken_; }

 private:
  void free_all() {
    freed_records_ = at_;
    freed_data_ = data_total_;
    control_->consumed.store(at_, std::memory_order_release);
    control_->consumed_data.store(data_total_, std::memory_order_release);
  }

  RingControl* control_ = nullptr;
  std::size_t most_payload_ = 0;
  std::size_t next_lines_ = 0;
  std::uint64_t freed_records_ = 0;
  std::uint64_t freed_data_ = 0;
  bool broken_ = false;
};

/// For the next owner: no word of an earlier one is left.
inline void clear_ring(std::byte* ring, std::uint32_t bytes) {
  auto* const records = reinterpret_cast<Record*>(ring);
  for (std::size_t index = 0; index < record_count(bytes); ++index)
    word_of(records[index]).store(0, std::memory_order_relaxed);
}

}  // namespace railyard::fabric::shm
