/// Latencies in logarithmic buckets: constant memory, about 3 % wide, and two of them add up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace railyard::tool {

class Histogram {
 public:
  /// 32 buckets for each doubling, up to about 18 minutes in nanoseconds.
  static constexpr std::size_t kSubBits = 5;
  static constexpr std::size_t kSubBuckets = 1U << kSubBits;
  static constexpr std::size_t kLargestExponent = 40;
  static constexpr std::size_t kBuckets = (kLargestExponent - kSubBits + 2) * kSubBuckets;

  void add(std::uint64_t nanoseconds);
  void merge(const Histogram& other);
  std::uint64_t count() const { return count_; }
  /// The value below which a share `quantile` (0 to 1) of the samples lies, to the bucket's middle; 0 without samples.
  double quantile(double quantile) const;

  /// The raw buckets, to send to another rank and to read back there.
  std::span<const std::uint32_t, kBuckets> buckets() const { return buckets_; }
  static Histogram from_buckets(std::span<const std::uint32_t, kBuckets> buckets);

 private:
  std::array<std::uint32_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
};

}  // namespace railyard::tool
