#include "base/entropy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace railyard {
namespace {

TEST(Entropy, FillsEveryByte) {
  // A position that stays zero in 64 drawings of a random byte has a chance of 256^-64.
  std::vector<std::byte> ever(1000);
  for (int i = 0; i < 64; ++i) {
    std::vector<std::byte> bytes(ever.size());
    ASSERT_TRUE(fill_random(bytes));
    for (std::size_t j = 0; j < bytes.size(); ++j) ever[j] |= bytes[j];
  }
  EXPECT_EQ(std::count(ever.begin(), ever.end(), std::byte{0}), 0);
}

TEST(Entropy, NothingToFillIsFine) { EXPECT_TRUE(fill_random({})); }

}  // namespace
}  // namespace railyard
