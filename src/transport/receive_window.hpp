/// Which segments of a flow have arrived: the receiver's side of the sequence (promises 2 and 3: in order, none twice).
#pragma once

#include <array>
#include <cstdint>

#include "transport/wire.hpp"

namespace railyard::transport {

/// Tracks the segments from `next()` on, up to kMaxWindow ahead. Sequence numbers wrap; all comparisons are relative.
class ReceiveWindow {
 public:
  enum class Arrival : std::uint8_t {
    fresh,      ///< seen for the first time
    duplicate,  ///< seen before
    outside,    ///< further ahead than any grant: not from an honest sender
  };

  explicit ReceiveWindow(std::uint32_t first = 0) : next_(first) {}

  /// The lowest segment that has not taken effect yet.
  std::uint32_t next() const { return next_; }

  /// The full number of a segment of which only the immediate's bits are known. Segments behind `next` by up to half
  /// the space come out behind it, so that late duplicates are told apart.
  std::uint32_t expand(std::uint32_t low_bits) const {
    const std::uint32_t ahead = (low_bits - next_) & wire::Immediate::kSequenceMask;
    return ahead < wire::kMaxWindow ? next_ + ahead : next_ + ahead - (wire::Immediate::kSequenceMask + 1U);
  }

  Arrival arrive(std::uint32_t sequence) {
    const std::uint32_t ahead = sequence - next_;
    if (ahead >= 0x80000000U) return Arrival::duplicate;
    if (ahead >= wire::kMaxWindow) return Arrival::outside;
    std::uint64_t& word = bits_[(sequence / 64U) % kWords];
    const std::uint64_t bit = std::uint64_t{1} << (sequence % 64U);
    if ((word & bit) != 0) return Arrival::duplicate;
    word |= bit;
    ++marked_;
    return Arrival::fresh;
  }

  /// Whether the segment has been seen.
  bool arrived(std::uint32_t sequence) const {
    const std::uint32_t ahead = sequence - next_;
    if (ahead >= wire::kMaxWindow) return ahead >= 0x80000000U;
    return (bits_[(sequence / 64U) % kWords] >> (sequence % 64U) & 1U) != 0;
  }

  /// Which of the 64 segments from `first` on have been seen, none of them behind `next`: the lowest bit is `first`.
  std::uint64_t word(std::uint32_t first) const {
    const std::uint32_t shift = first % 64U;
    const std::uint64_t low = bits_[(first / 64U) % kWords] >> shift;
    // What wraps around lies behind `next`, where no bit is set.
    return shift == 0 ? low : low | bits_[(first / 64U + 1U) % kWords] << (64U - shift);
  }

  /// Whether the segment at `next` has arrived.
  bool ready() const { return marked_ != 0 && (bits_[(next_ / 64U) % kWords] >> (next_ % 64U) & 1U) != 0; }

  /// Passes the segment at `next`, which took effect at once: nothing has marked it as arrived.
  void pass() { ++next_; }

  /// Passes the segment at `next`, which has taken effect.
  void advance() {
    std::uint64_t& word = bits_[(next_ / 64U) % kWords];
    const std::uint64_t bit = std::uint64_t{1} << (next_ % 64U);
    if ((word & bit) != 0) --marked_;
    word &= ~bit;
    ++next_;
  }

 private:
  static constexpr std::uint32_t kWords = wire::kMaxWindow / 64U;
  std::uint32_t next_;
  std::uint32_t marked_ = 0;  ///< bits that are set: mostly none, and then nobody looks for one
  std::array<std::uint64_t, kWords> bits_{};
};

}  // namespace railyard::transport
