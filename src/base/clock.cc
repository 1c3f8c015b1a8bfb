#include "base/clock.hpp"

#include <sched.h>
#include <time.h>

namespace railyard {

[[gnu::hot]] std::int64_t SteadyClock::now() const {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

void SteadyClock::idle() { sched_yield(); }

}  // namespace railyard
