#include "memory/slab.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>

#include "memory/counting_rail.hpp"

namespace railyard::memory {
namespace {

TEST(Slab, GrowsByBlocksUpToItsBound) {
  CountingRail rail;
  const std::array<fabric::Rail*, 1> rails{&rail};
  auto slab = Slab::open(rails, 1000, 4, 10);
  ASSERT_TRUE(slab.ok());
  EXPECT_EQ(slab->size(), 4u);
  std::vector<Buffer*> taken;
  std::set<std::byte*> places;
  for (int i = 0; i < 10; ++i) {
    Buffer* const buffer = slab->take();
    ASSERT_NE(buffer, nullptr) << i;
    EXPECT_EQ(buffer->capacity, 1000u);
    EXPECT_EQ(buffer->bytes, 0u);
    EXPECT_EQ(buffer->next, nullptr);
    std::memset(buffer->data, i, buffer->capacity);
    places.insert(buffer->data);
    taken.push_back(buffer);
  }
  EXPECT_EQ(slab->take(), nullptr);
  EXPECT_EQ(slab->outstanding(), 10u);
  EXPECT_EQ(slab->size(), 10u);
  EXPECT_EQ(places.size(), 10u);
  EXPECT_EQ(rail.registered(), 3u) << "one registration for each block, not for each buffer";
  for (std::size_t i = 0; i < taken.size(); ++i)
    for (std::size_t k = 0; k < 1000; ++k) ASSERT_EQ(taken[i]->data[k], static_cast<std::byte>(i)) << "overlap";

  slab->give(taken[3]);
  EXPECT_EQ(slab->outstanding(), 9u);
  EXPECT_EQ(slab->take(), taken[3]);
  for (Buffer* buffer : taken) slab->give(buffer);
  EXPECT_EQ(slab->outstanding(), 0u);
}

TEST(Slab, BuffersKnowTheirControlLaneDescriptorOnEachRail) {
  CountingRail first;
  CountingRail second;
  const std::array<fabric::Rail*, 2> rails{&first, &second};
  {
    std::vector<std::byte> memory(16);
    (void)second.register_memory(memory, {});  // so that the two rails' descriptors differ
  }
  auto slab = Slab::open(rails, 64, 2, 2);
  ASSERT_TRUE(slab.ok());
  Buffer* const buffer = slab->take();
  buffer->bytes = 10;
  EXPECT_EQ(buffer->chunk(0).bytes, 10u);
  EXPECT_EQ(buffer->room(0).bytes, 64u);
  EXPECT_EQ(buffer->chunk(0).address, buffer->data);
  EXPECT_EQ(buffer->chunk(0).descriptor, reinterpret_cast<void*>(2));
  EXPECT_EQ(buffer->chunk(1).descriptor, reinterpret_cast<void*>(4));
  slab->give(buffer);
}

TEST(Slab, ReleasesItsRegistrationsAndSurvivesMoving) {
  CountingRail rail;
  const std::array<fabric::Rail*, 1> rails{&rail};
  {
    auto opened = Slab::open(rails, 128, 8, 16);
    ASSERT_TRUE(opened.ok());
    Slab slab = std::move(*opened);
    Buffer* const buffer = slab.take();
    Slab other = std::move(slab);
    EXPECT_EQ(other.outstanding(), 1u);
    EXPECT_EQ(slab.take(), nullptr);  // NOLINT(bugprone-use-after-move): an empty slab gives nothing
    other.give(buffer);
    EXPECT_EQ(rail.alive(), 1u);
  }
  EXPECT_EQ(rail.alive(), 0u);
}

TEST(Slab, ARailThatRefusesEndsGrowthWithoutACrash) {
  CountingRail rail;
  const std::array<fabric::Rail*, 1> rails{&rail};
  auto slab = Slab::open(rails, 128, 2, 8);
  ASSERT_TRUE(slab.ok());
  Buffer* const first = slab->take();
  Buffer* const second = slab->take();
  rail.refuse(true);
  EXPECT_EQ(slab->take(), nullptr);
  slab->give(first);
  EXPECT_NE(slab->take(), nullptr);
  rail.refuse(false);
  EXPECT_NE(slab->take(), nullptr);
  slab->give(second);
  EXPECT_EQ(Slab::open(rails, 0, 2, 8).status(), Status::invalid);
  EXPECT_EQ(Slab::open(rails, 64, 0, 8).status(), Status::invalid);
  EXPECT_EQ(Slab::open(rails, 64, 2, 0).status(), Status::invalid);
  rail.refuse(true);
  EXPECT_EQ(Slab::open(rails, 64, 2, 8).status(), Status::no_memory);
}

}  // namespace
}  // namespace railyard::memory
