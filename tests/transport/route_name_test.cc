// Names of routes and links: no two may ever be equal, for a target knows a peer's link by nothing else.
#include "transport/route_name.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/random.hpp"

namespace railyard::transport {
namespace {

class RouteNameTest : public ::testing::Test {
 protected:
  Identity identity() {
    Identity made;
    for (std::size_t i = 0; i < made.bytes.size(); i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random_.next();
      std::memcpy(made.bytes.data() + i, &word, sizeof word);
    }
    return made;
  }
  Random random_{20};
};

/// What a process with many peers holds. Thirty-two bits would not do: of so many, about 128 pairs would be equal.
TEST_F(RouteNameTest, AMillionRoutesToOneProcessHaveAMillionNames) {
  constexpr std::size_t kRoutes = std::size_t{1} << 20U;
  const Identity own = identity();
  std::vector<fabric::LinkName> names;
  std::vector<std::uint32_t> halves;
  names.reserve(kRoutes);
  halves.reserve(kRoutes);
  for (std::size_t i = 0; i < kRoutes; ++i) {
    names.push_back(RouteName::make(own, identity(), 0, 0, static_cast<std::uint16_t>(i)).in);
    halves.push_back(static_cast<std::uint32_t>(names.back().high));
  }
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  std::ranges::sort(halves);
  EXPECT_NE(std::ranges::adjacent_find(halves), halves.end()) << "the birthday arithmetic says otherwise";
}

TEST_F(RouteNameTest, BothEndsMakeTheSameNames) {
  const Identity one = identity();
  const Identity other = identity();
  const RouteName here = RouteName::make(one, other, 7, 1, 2);
  const RouteName there = RouteName::make(other, one, 7, 2, 1);
  EXPECT_EQ(here.out, there.in);
  EXPECT_EQ(here.in, there.out);
  EXPECT_NE(here.out, here.in);
  EXPECT_NE(here.out, RouteName::make(one, other, 8, 1, 2).out) << "another instance";
  EXPECT_NE(here.out, RouteName::make(one, other, 7, 3, 2).out) << "another label";
}

TEST_F(RouteNameTest, ALinksNameLeadsToItsRoute) {
  const RouteName name = RouteName::make(identity(), identity(), 0, 0, 0);
  EXPECT_EQ(RouteName::of_link(name.out, 0), name.out);
  EXPECT_NE(RouteName::of_link(name.out, 1), RouteName::of_link(name.out, 2));
  EXPECT_EQ(RouteName::of_route(RouteName::of_link(name.out, 63)), name.out);
}

}  // namespace
}  // namespace railyard::transport
