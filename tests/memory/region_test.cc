#include "memory/region.hpp"

#include <gtest/gtest.h>

#include <array>

#include "memory/counting_rail.hpp"

namespace railyard::memory {
namespace {

TEST(Region, RegistersOnEveryRailAndTakesItBackWithTheLastReference) {
  CountingRail first;
  CountingRail second;
  const std::array<fabric::Rail*, 2> rails{&first, &second};
  std::vector<std::byte> memory(1000);
  auto region = Region::open(rails, memory, {.remote = true});
  ASSERT_TRUE(region.ok());
  EXPECT_EQ((*region)->memory().data(), memory.data());
  EXPECT_TRUE(first.last_access().remote);
  EXPECT_EQ((*region)->on(0).key, 1u);
  EXPECT_EQ((*region)->on(1).key, 1u);
  const std::shared_ptr<Region> held = *region;
  region = Error(Status::ok);
  EXPECT_EQ(first.alive() + second.alive(), 2u);
  const_cast<std::shared_ptr<Region>&>(held).reset();
  EXPECT_EQ(first.alive() + second.alive(), 0u);
}

TEST(Region, ARailThatRefusesLeavesNothingBehind) {
  CountingRail first;
  CountingRail second;
  second.refuse(true);
  const std::array<fabric::Rail*, 2> rails{&first, &second};
  std::vector<std::byte> memory(1000);
  EXPECT_EQ(Region::open(rails, memory, {}).status(), Status::no_memory);
  EXPECT_EQ(first.registered(), 1u);
  EXPECT_EQ(first.alive(), 0u);
}

TEST(Region, ARailWhoseDeviceHasGoneIsNoObstacleAsLongAsAnotherIsThere) {
  CountingRail first;
  CountingRail second;
  first.go();
  const std::array<fabric::Rail*, 2> rails{&first, &second};
  std::vector<std::byte> memory(1000);
  {
    const auto region = Region::open(rails, memory, {.remote = true});
    ASSERT_TRUE(region.ok()) << region.error().text();
    EXPECT_EQ((*region)->on(1).key, 1u);
    EXPECT_EQ(second.alive(), 1u);
  }
  EXPECT_EQ(second.alive(), 0u);
  second.go();
  EXPECT_EQ(Region::open(rails, memory, {.remote = true}).status(), Status::rail_failed);
}

}  // namespace
}  // namespace railyard::memory
