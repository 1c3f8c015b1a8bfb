#include "histogram.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace railyard::tool {

namespace {

std::size_t bucket_of(std::uint64_t value) {
  if (value < Histogram::kSubBuckets) return static_cast<std::size_t>(value);
  const auto exponent = static_cast<std::size_t>(std::bit_width(value)) - 1;
  const std::size_t sub = (value >> (exponent - Histogram::kSubBits)) & (Histogram::kSubBuckets - 1);
  return std::min((exponent - Histogram::kSubBits + 1) * Histogram::kSubBuckets + sub, Histogram::kBuckets - 1);
}

double middle_of(std::size_t bucket) {
  if (bucket < Histogram::kSubBuckets) return static_cast<double>(bucket);
  const std::size_t shift = bucket / Histogram::kSubBuckets - 1;
  const double lower = static_cast<double>(Histogram::kSubBuckets + bucket % Histogram::kSubBuckets);
  return std::ldexp(lower + 0.5, static_cast<int>(shift));
}

}  // namespace

void Histogram::add(std::uint64_t nanoseconds) {
  ++buckets_[bucket_of(nanoseconds)];
  ++count_;
}

void Histogram::merge(const Histogram& other) {
  for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
}

double Histogram::quantile(double quantile) const {
  if (count_ == 0) return 0;
  const double wanted = std::clamp(quantile, 0.0, 1.0) * static_cast<double>(count_);
  double seen = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    if (buckets_[i] == 0) continue;
    last = i;
    seen += static_cast<double>(buckets_[i]);
    if (seen >= wanted) break;
  }
  return middle_of(last);
}

Histogram Histogram::from_buckets(std::span<const std::uint32_t, kBuckets> buckets) {
  Histogram result;
  std::copy(buckets.begin(), buckets.end(), result.buckets_.begin());
  for (const std::uint32_t n : buckets) result.count_ += n;
  return result;
}

}  // namespace railyard::tool
