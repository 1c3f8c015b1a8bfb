#include "base/clock.hpp"

#include <gtest/gtest.h>
#include <time.h>

namespace railyard {
namespace {

TEST(SteadyClock, NeverGoesBackAndDoesGoOn) {
  SteadyClock clock;
  const std::int64_t start = clock.now();
  std::int64_t last = start;
  for (int i = 0; i < 10000; ++i) {
    const std::int64_t now = clock.now();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_GT(last, start);
}

TEST(SteadyClock, CountsNanoseconds) {
  SteadyClock clock;
  const std::int64_t start = clock.now();
  const timespec pause{0, 20'000'000};
  nanosleep(&pause, nullptr);
  EXPECT_GE(clock.now() - start, 20'000'000);
  clock.idle();
}

}  // namespace
}  // namespace railyard
