/// A small, fast, seedable generator: the same seed gives the same run everywhere.
#pragma once

#include <cstdint>

namespace railyard {

/// SplitMix64: one 64-bit state, full period, good enough for schedules and ids.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31U);
  }
  /// Uniform in [0, bound); bound > 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  /// True with the given probability.
  bool chance(double probability) { return static_cast<double>(next() >> 11U) * 0x1.0p-53 < probability; }

 private:
  std::uint64_t state_;
};

}  // namespace railyard
