#include "fabric/ofi/keys.hpp"

#include <gtest/gtest.h>

#include <set>

namespace railyard::fabric::ofi {
namespace {

TEST(KeyPool, KeysFitAndDifferUntilTheyAreGivenBack) {
  auto pool = KeyPool::open(1);
  ASSERT_TRUE(pool.ok());
  std::set<std::uint64_t> keys;
  for (int i = 0; i < 255; ++i) {
    const auto key = pool->take();
    ASSERT_TRUE(key.ok()) << i;
    EXPECT_LE(*key, 255u);
    EXPECT_TRUE(keys.insert(*key).second);
  }
  EXPECT_EQ(pool->take().status(), Status::no_memory);
  pool->give(*keys.begin());
  keys.erase(keys.begin());
  for (int i = 0; i < 1000; ++i) {
    const auto key = pool->take();
    ASSERT_TRUE(key.ok());
    EXPECT_FALSE(keys.contains(*key)) << "in use already";
    pool->give(*key);
  }
}

TEST(KeyPool, AKeyIsNotReusedAtOnce) {
  auto pool = KeyPool::open(8);
  ASSERT_TRUE(pool.ok());
  const auto first = pool->take();
  pool->give(*first);
  const auto second = pool->take();
  EXPECT_NE(*first, *second);
  EXPECT_LE(*second, static_cast<std::uint64_t>(INT64_MAX));
}

TEST(KeyPool, OneKeySaysNothingAboutTheNext) {
  auto pool = KeyPool::open(8);
  ASSERT_TRUE(pool.ok());
  std::uint64_t last = *pool->take();
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t next = *pool->take();
    // Neighbours among 2^63 would be a wonder.
    EXPECT_GT(next > last ? next - last : last - next, 1u << 20);
    last = next;
  }
}

TEST(KeyPool, NeedsRoomForAKey) { EXPECT_EQ(KeyPool::open(0).status(), Status::unsupported); }

}  // namespace
}  // namespace railyard::fabric::ofi
