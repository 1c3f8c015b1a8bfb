#include "shm/distance.hpp"

#include <gtest/gtest.h>

namespace railyard::shm {
namespace {

constexpr std::uint64_t kInterrupt = 1'000'000;

TEST(Distance, OneInterruptIsNoDistance) {
  for (const std::uint32_t near : {0U, 5U, 15U}) {
    const std::uint32_t interrupted = after_timing(near, kInterrupt);
    EXPECT_LE(interrupted, kFarCycles) << near;
    EXPECT_LE(after_timing(interrupted, near), kFarCycles) << near;
  }
}

TEST(Distance, TwoSlowCopiesInARowAre) { EXPECT_GT(after_timing(after_timing(5, 650), 650), kFarCycles); }

TEST(Distance, OneFastCopyMakesAPeerNearAgain) {
  std::uint32_t far = 0;
  for (int i = 0; i < 100; ++i) far = after_timing(far, 650);
  EXPECT_GT(far, kFarCycles);
  EXPECT_LE(after_timing(far, 5), kFarCycles);
}

}  // namespace
}  // namespace railyard::shm
