#include "shm/distance.hpp"

#include "shm/layout.hpp"

namespace railyard::shm {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kMostTimed = 8192;  ///< of one copy: the rest of a long one goes the way that was found
/// One copy in so many is timed: seldom far away, where plain stores cost most; often where a wrong guess does.
constexpr std::uint32_t kTimedEvery = 32;
constexpr std::uint32_t kTimedEveryFar = 128;
constexpr std::uint32_t kTimedEveryFarLong = 16;
/// Between near cores: shorter ones are taken from our cache at once, and of longer ones much has left it for a cache
/// that both cores share by the time they are read.
constexpr std::size_t kLeastPastNear = 16384;
constexpr std::size_t kMostPastNear = 65536;

std::uint32_t timed_every(bool far, std::size_t bytes) {
  if (bytes >= kMostPastNear) return far ? kTimedEveryFarLong : 1;
  return far ? kTimedEveryFar : kTimedEvery;
}

}  // namespace

bool Distance::is_far() const { return cycles_per_line_.load(std::memory_order_relaxed) > kFarCycles; }

void Distance::copy_timed(std::byte* to, const std::byte* from, std::size_t bytes) {
  _mm_mfence();  // earlier stores are done before the clock starts
  const std::uint64_t begin = __rdtsc();
  copy_bytes(to, from, bytes);
  _mm_mfence();
  const std::uint64_t cycles = (__rdtsc() - begin) / (bytes / kLine);
  const std::uint32_t before = cycles_per_line_.load(std::memory_order_relaxed);
  cycles_per_line_.store(after_timing(before, cycles), std::memory_order_relaxed);
}

void Distance::copy_long(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::uint32_t number = copies_.load(std::memory_order_relaxed);
  copies_.store(number + 1, std::memory_order_relaxed);
  std::size_t done = 0;
  if (number % timed_every(is_far(), bytes) == 0) {
    done = std::min(bytes, kMostTimed);
    copy_timed(to, from, done);
  }
  if (is_far() || (bytes >= kLeastPastNear && bytes < kMostPastNear)) {
    copy_past_cache(to + done, from + done, bytes - done);
  } else {
    copy_bytes(to + done, from + done, bytes - done);
  }
}

#else

void Distance::copy_long(std::byte* to, const std::byte* from, std::size_t bytes) { copy_bytes(to, from, bytes); }

#endif

}  // namespace railyard::shm
