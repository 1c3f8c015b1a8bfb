#include "base/random.hpp"

#include <gtest/gtest.h>

namespace railyard {
namespace {

TEST(Random, TheSameSeedGivesTheSameRun) {
  Random a(7);
  Random b(7);
  Random other(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t value = a.next();
    EXPECT_EQ(value, b.next());
    differs = differs || value != other.next();
  }
  EXPECT_TRUE(differs);
}

// The published first values of SplitMix64 from seed 1234567.
TEST(Random, IsSplitMix64) {
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317ULL);
  EXPECT_EQ(random.next(), 3203168211198807973ULL);
  EXPECT_EQ(random.next(), 9817491932198370423ULL);
}

TEST(Random, BelowStaysBelowAndReachesAll) {
  Random random(1);
  unsigned seen = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t value = random.below(5);
    ASSERT_LT(value, 5U);
    seen |= 1U << value;
  }
  EXPECT_EQ(seen, 31U);
}

TEST(Random, ChanceKeepsItsProbability) {
  Random random(3);
  int hits = 0;
  for (int i = 0; i < 10'000; ++i) hits += random.chance(0.25) ? 1 : 0;
  EXPECT_GT(hits, 2200);
  EXPECT_LT(hits, 2800);
  EXPECT_FALSE(random.chance(0.0));
  EXPECT_TRUE(random.chance(1.0));
}

}  // namespace
}  // namespace railyard
