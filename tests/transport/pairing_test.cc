#include "transport/pairing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace railyard::transport {
namespace {

using Pairs = std::vector<std::pair<std::uint16_t, std::uint16_t>>;
using Names = std::vector<std::string>;

TEST(Pairing, EqualFabricsMeet) {
  EXPECT_EQ(pair_rails(Names{"a", "b", "c"}, Names{"c", "a", "b"}), (Pairs{{0, 1}, {1, 2}, {2, 0}}));
}

TEST(Pairing, TheSideWithFewerRailsIsSharedOut) {
  EXPECT_EQ(pair_rails(Names{"a", "a"}, Names{"a", "a", "a", "a"}), (Pairs{{0, 0}, {1, 1}, {0, 2}, {1, 3}}));
}

TEST(Pairing, ARailWithoutPartnerIsLeftOut) {
  EXPECT_EQ(pair_rails(Names{"a", "x"}, Names{"a", "y"}), (Pairs{{0, 0}}));
}

TEST(Pairing, NoSharedFabricMeansTryAll) {
  EXPECT_EQ(pair_rails(Names{"a", "b"}, Names{"x"}), (Pairs{{0, 0}, {1, 0}}));
}

TEST(Pairing, SharedMemoryIsUsedAlone) {
  const Names here{"a", "b", "shared memory x"};
  EXPECT_EQ(pair_rails(here, Names{"shared memory x", "a", "b"}), (Pairs{{2, 0}}));
  EXPECT_EQ(pair_rails(here, Names{"shared memory x", "a", "b"}, true), (Pairs{{0, 1}, {1, 2}}));
}

TEST(Pairing, TheMemoryOfTwoMachinesIsNoFabric) {
  const Names here{"a", "shared memory x"};
  EXPECT_EQ(pair_rails(here, Names{"shared memory y", "a"}), (Pairs{{0, 1}}));
  EXPECT_EQ(pair_rails(here, Names{"shared memory y", "z"}), (Pairs{{0, 1}}));
  EXPECT_TRUE(pair_rails(Names{"shared memory x"}, Names{"shared memory y"}).empty());
  EXPECT_TRUE(pair_rails(Names{"shared memory x"}, Names{"shared memory x"}, true).empty());
}

TEST(Pairing, BothEndsComputeTheSamePairs) {
  const Names here{"a", "b", "a", "c"};
  const Names there{"a", "a", "a", "b", "z"};
  std::set<std::pair<std::uint16_t, std::uint16_t>> forward;
  std::set<std::pair<std::uint16_t, std::uint16_t>> backward;
  for (const auto& pair : pair_rails(here, there)) forward.insert(pair);
  for (const auto& [a, b] : pair_rails(there, here)) backward.insert({b, a});
  EXPECT_EQ(forward, backward);
}

}  // namespace
}  // namespace railyard::transport
