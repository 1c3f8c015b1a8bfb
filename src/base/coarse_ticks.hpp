/// A clock that costs less than a call: for how often to look at something, not for how long it took.
#pragma once

#include <cstdint>
#if !defined(__x86_64__)
#include <time.h>
#endif

namespace railyard {

/// Counts on at 1 to 5 a nanosecond.
inline std::uint64_t coarse_ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
#endif
}

}  // namespace railyard
