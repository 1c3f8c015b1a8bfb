/// Where things are in every rank's window: the same for all, so that a source knows its places at every target.
#pragma once

#include <cstddef>
#include <cstdint>

namespace railyard::sim {

/// Bytes between two slots that nobody may touch.
inline constexpr std::size_t kGuard = 64;
inline constexpr std::byte kGuardByte{0xa5};

class Layout {
 public:
  static constexpr std::size_t kConstantBytes = 12 * 1024;
  static constexpr std::size_t kSmallBytes = 1024;
  static constexpr std::size_t kMediumBytes = 24 * 1024;
  static constexpr std::size_t kLargeBytes = 256 * 1024;
  static constexpr std::size_t kMostSlots = 10;
  /// Words that one source alone changes: the first two are 64 bits wide, the third is 32.
  static constexpr std::size_t kOwnWords = 3;
  /// Sources that count in one shared signal, 16 bits each.
  static constexpr std::size_t kPerShared = 4;

  enum SharedWord : std::size_t { kAddWord, kSwapWord, kCompareWord, kSumWord, kSharedWords };

  Layout(std::size_t ranks, bool large) : ranks_(ranks) {
    const bool many = ranks > 8;
    add_slots(many ? 2 : 6, kSmallBytes);
    add_slots(many ? 1 : 3, many ? kMediumBytes / 3 : kMediumBytes);
    if (large) add_slots(1, kLargeBytes);
    words_ = kConstantBytes;
    slots_ = words_ + 8 * (kSharedWords + kOwnWords * ranks) + kGuard;
  }

  std::size_t bytes() const { return slots_ + ranks_ * source_bytes_ + kGuard; }
  std::size_t slots_per_source() const { return slot_count_; }
  std::size_t slot_bytes(std::size_t slot) const { return capacity_[slot]; }
  std::size_t slot_offset(std::size_t source, std::size_t slot) const {
    return slots_ + source * source_bytes_ + offset_[slot];
  }
  std::size_t shared_word(SharedWord word) const { return words_ + 8 * word; }
  std::size_t own_word(std::size_t source, std::size_t word) const {
    return words_ + 8 * (kSharedWords + kOwnWords * source + word);
  }

  // Signals: one that only `source` adds to, one that only it sets, 16 bits of a shared one, and one that all add to.
  std::size_t signals() const { return 2 * ranks_ + (ranks_ + kPerShared - 1) / kPerShared + 1; }
  static std::size_t add_signal(std::size_t source) { return source; }
  std::size_t set_signal(std::size_t source) const { return ranks_ + source; }
  std::size_t shared_signal(std::size_t source) const { return 2 * ranks_ + source / kPerShared; }
  static unsigned shared_shift(std::size_t source) { return 16U * static_cast<unsigned>(source % kPerShared); }
  std::size_t sum_signal() const { return signals() - 1; }

 private:
  void add_slots(std::size_t count, std::size_t bytes) {
    for (std::size_t i = 0; i < count; ++i) {
      source_bytes_ += kGuard;
      capacity_[slot_count_] = bytes;
      offset_[slot_count_] = source_bytes_;
      source_bytes_ += bytes;
      ++slot_count_;
    }
  }

  std::size_t ranks_;
  std::size_t words_ = 0;
  std::size_t slots_ = 0;
  std::size_t source_bytes_ = 0;
  std::size_t slot_count_ = 0;
  std::size_t capacity_[kMostSlots] = {};
  std::size_t offset_[kMostSlots] = {};
};

}  // namespace railyard::sim
