#include "memory/cache.hpp"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "memory/counting_rail.hpp"
#include "memory/pages.hpp"

namespace railyard::memory {
namespace {

class Cache : public ::testing::Test {
 protected:
  static bool covers(const Region& region, std::span<const std::byte> memory) {
    return region.memory().data() <= memory.data() &&
           memory.data() + memory.size() <= region.memory().data() + region.memory().size();
  }

  CountingRail rail_;
  std::array<fabric::Rail*, 1> rails_{&rail_};
  Pages pages_{64};
};

TEST_F(Cache, WhatLiesWithinIsAHit) {
  RegionCache cache(rails_);
  const auto first = cache.find(pages_.pages(4, 4));
  ASSERT_TRUE(first.ok()) << first.error().text();
  EXPECT_FALSE(rail_.last_access().remote);
  for (const auto part : {pages_.pages(4, 4), pages_.pages(5, 1), pages_.pages(7, 1).subspan(100, 3)}) {
    const auto again = cache.find(part);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(*again, *first);
  }
  EXPECT_EQ(rail_.registered(), 1u);
  EXPECT_EQ(cache.statistics().hits, 3u);
  EXPECT_EQ(cache.statistics().misses, 1u);
}

TEST_F(Cache, WherePagesArePinnedNothingOutlivesItsUse) {
  rail_.pin();
  RegionCache cache(rails_);
  {
    const auto first = cache.find(pages_.pages(4, 4));
    const auto again = cache.find(pages_.pages(4, 4));
    ASSERT_TRUE(first.ok() && again.ok());
    EXPECT_NE(*first, *again) << "the memory may be another by now";
    EXPECT_EQ(rail_.alive(), 2u);
  }
  EXPECT_EQ(rail_.alive(), 0u);
}

TEST_F(Cache, WherePagesArePinnedWhatIsToBeRememberedIs) {
  rail_.pin();
  RegionCache cache(rails_);
  ASSERT_TRUE(cache.remember(pages_.pages(4, 4)).ok());
  const auto region = cache.find(pages_.pages(5, 1));
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE(covers(**region, pages_.pages(4, 4)));
  EXPECT_EQ(rail_.registered(), 1u);
  cache.forget(pages_.pages(4, 1));
  EXPECT_EQ(rail_.alive(), 1u) << "it is in use";
}

TEST_F(Cache, WhatPeersMayWriteToIsExactAndEndsWithItsUse) {
  RegionCache cache(rails_, {.remote = true, .bulk = true});
  const auto bytes = pages_.pages(3, 2).subspan(100, 5000);
  const auto source = cache.find(bytes);
  ASSERT_TRUE(source.ok());
  EXPECT_FALSE(rail_.last_access().remote) << "a source is nothing that peers may write to";
  {
    const auto exposed = cache.expose(bytes);
    const auto again = cache.expose(bytes);
    ASSERT_TRUE(exposed.ok() && again.ok());
    EXPECT_TRUE(rail_.last_access().remote);
    EXPECT_EQ(rail_.last_memory().data(), bytes.data());
    EXPECT_EQ(rail_.last_memory().size(), bytes.size());
    EXPECT_NE(*exposed, *again) << "each receive has its own";
    EXPECT_EQ(*cache.find(bytes), *source);
    EXPECT_EQ(rail_.alive(), 3u);
    (*again)->settle();
  }
  EXPECT_EQ(rail_.alive(), 1u) << "what one receive allowed stays open";
  EXPECT_EQ(rail_.settled(), 1u) << "only what is known to be over is given back gently";
}

TEST_F(Cache, APageIsRegisteredWhole) {
  RegionCache cache(rails_);
  const auto first = cache.find(pages_.pages(3, 1).subspan(100, 8));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*first)->memory().data(), pages_.pages(3, 1).data());
  EXPECT_EQ((*first)->memory().size(), page_bytes());
  EXPECT_EQ(*cache.find(pages_.pages(3, 1)), *first);
  EXPECT_EQ(rail_.registered(), 1u);
}

TEST_F(Cache, NeighboursAreNotConfused) {
  RegionCache cache(rails_);
  ASSERT_TRUE(cache.find(pages_.pages(4, 2)).ok());
  for (const auto other : {pages_.pages(3, 1), pages_.pages(6, 1)}) {
    const auto found = cache.find(other);
    ASSERT_TRUE(found.ok());
    EXPECT_TRUE(covers(**found, other));
  }
  EXPECT_EQ(cache.statistics().misses, 3u);
  EXPECT_EQ(cache.statistics().merged, 0u);
}

TEST_F(Cache, AnOverlapTakesTheOldOnesIn) {
  RegionCache cache(rails_);
  ASSERT_TRUE(cache.find(pages_.pages(4, 2)).ok());
  ASSERT_TRUE(cache.find(pages_.pages(8, 2)).ok());
  const auto both = cache.find(pages_.pages(5, 4));
  ASSERT_TRUE(both.ok());
  EXPECT_TRUE(covers(**both, pages_.pages(4, 6)));
  EXPECT_EQ(cache.statistics().merged, 2u);
  EXPECT_EQ(cache.statistics().entries, 1u);
  EXPECT_EQ(cache.statistics().bytes, 6 * page_bytes());
  EXPECT_EQ(rail_.alive(), 1u);
  EXPECT_EQ(*cache.find(pages_.pages(4, 1)), *both);
}

TEST_F(Cache, AnEntryInUseOutlivesItsMergerAndItsEviction) {
  RegionCache cache(rails_, {.entries = 1, .bytes = std::size_t{1} << 30});
  auto used = cache.find(pages_.pages(0, 1));
  ASSERT_TRUE(used.ok());
  ASSERT_TRUE(cache.find(pages_.pages(10, 1)).ok());
  EXPECT_EQ(cache.statistics().evicted, 1u);
  EXPECT_EQ(rail_.alive(), 2u) << "the operation in flight still needs it";
  used = Error(Status::ok);
  EXPECT_EQ(rail_.alive(), 1u);
}

TEST_F(Cache, TheLeastRecentlyUsedLeavesFirst) {
  RegionCache cache(rails_, {.entries = 3, .bytes = std::size_t{1} << 30});
  for (const std::size_t page : {0u, 10u, 20u}) ASSERT_TRUE(cache.find(pages_.pages(page, 1)).ok());
  ASSERT_TRUE(cache.find(pages_.pages(0, 1)).ok());   // used again
  ASSERT_TRUE(cache.find(pages_.pages(30, 1)).ok());  // 10 leaves
  const std::size_t before = rail_.registered();
  ASSERT_TRUE(cache.find(pages_.pages(0, 1)).ok());
  ASSERT_TRUE(cache.find(pages_.pages(20, 1)).ok());
  EXPECT_EQ(rail_.registered(), before);
  ASSERT_TRUE(cache.find(pages_.pages(10, 1)).ok());
  EXPECT_EQ(rail_.registered(), before + 1);
  EXPECT_EQ(cache.statistics().entries, 3u);
}

TEST_F(Cache, IsBoundedByBytesToo) {
  RegionCache cache(rails_, {.entries = 100, .bytes = 4 * page_bytes()});
  for (std::size_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(cache.find(pages_.pages(i * 3, 2)).ok());
    EXPECT_LE(cache.statistics().bytes, 4 * page_bytes());
  }
  // One that alone is over the bound is still served.
  EXPECT_TRUE(cache.find(pages_.pages(0, 40)).ok());
  EXPECT_EQ(cache.statistics().entries, 1u);
}

TEST_F(Cache, ForgetDropsWhatTouchesThePages) {
  RegionCache cache(rails_);
  for (const std::size_t page : {2u, 4u, 6u, 8u}) ASSERT_TRUE(cache.find(pages_.pages(page, 1)).ok());
  cache.forget(pages_.pages(4, 3).subspan(10, 2 * page_bytes()));
  EXPECT_EQ(rail_.alive(), 2u);
  EXPECT_EQ(cache.statistics().entries, 2u);
  const std::size_t before = rail_.registered();
  ASSERT_TRUE(cache.find(pages_.pages(4, 1)).ok());
  EXPECT_EQ(rail_.registered(), before + 1);
  cache.forget({});
  cache.forget(pages_.all());
  EXPECT_EQ(rail_.alive(), 0u);
  EXPECT_EQ(cache.statistics().bytes, 0u);
}

TEST_F(Cache, UnmappedMemoryIsAnErrorNotACrash) {
  RegionCache cache(rails_);
  pages_.unmap(10, 2);
  ASSERT_TRUE(cache.find(pages_.pages(8, 2)).ok());
  EXPECT_EQ(cache.find(pages_.pages(9, 2)).status(), Status::invalid);
  EXPECT_EQ(cache.find({}).status(), Status::invalid);
  const std::byte* const nothing = nullptr;
  EXPECT_EQ(cache.find({nothing, 8}).status(), Status::invalid);
  EXPECT_EQ(rail_.registered(), 1u);
  EXPECT_EQ(cache.statistics().entries, 1u) << "a bad request costs nobody his entry";
}

TEST_F(Cache, AStaleNeighbourDoesNotSpoilARequest) {
  RegionCache cache(rails_);
  ASSERT_TRUE(cache.find(pages_.pages(10, 4)).ok());
  pages_.unmap(10, 2);  // without forget: the union cannot be registered any more
  const auto found = cache.find(pages_.pages(12, 4));
  ASSERT_TRUE(found.ok()) << found.error().text();
  EXPECT_EQ((*found)->memory().size(), 4 * page_bytes());
}

TEST_F(Cache, ARailThatRefusesIsAnErrorAndNothingIsRemembered) {
  RegionCache cache(rails_);
  rail_.refuse(true);
  EXPECT_EQ(cache.find(pages_.pages(0, 1)).status(), Status::no_memory);
  EXPECT_EQ(cache.statistics().entries, 0u);
  rail_.refuse(false);
  EXPECT_TRUE(cache.find(pages_.pages(0, 1)).ok());
}

TEST_F(Cache, SeveralThreadsMayUseIt) {
  RegionCache cache(rails_, {.entries = 4, .bytes = std::size_t{1} << 30});
  std::vector<std::thread> threads;
  for (std::size_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (std::size_t i = 0; i < 500; ++i) {
        const auto part = pages_.pages((i * 7 + id * 5) % 60, 1 + i % 3);
        const auto found = cache.find(part);
        ASSERT_TRUE(found.ok());
        EXPECT_TRUE(covers(**found, part));
        if (i % 50 == 0) cache.forget(pages_.pages(id * 10, 10));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  cache.forget(pages_.all());
  EXPECT_EQ(rail_.alive(), 0u);
  EXPECT_EQ(cache.statistics().hits + cache.statistics().misses, 2000u);
}

}  // namespace
}  // namespace railyard::memory
