/// Sub-worlds: who is in them, what works on them, and what their errors say.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>

#include "process_world.hpp"

namespace railyard {
namespace {

struct SplitWay {
  const char* name;
  std::uint32_t rails;
  const char* shared_memory;
  const char* threads = "multiple";
};
class SplitTest : public ::testing::TestWithParam<SplitWay> {
 protected:
  Settings settings() const {
    Settings settings = loopback_settings(GetParam().rails);
    settings.shared_memory = GetParam().shared_memory;
    settings.threads = GetParam().threads;
    return settings;
  }
};
INSTANTIATE_TEST_SUITE_P(Rails, SplitTest,
                         ::testing::Values(SplitWay{"1rails", 1, "off"}, SplitWay{"3rails", 3, "off"},
                                           SplitWay{"direct", 2, "on"}, SplitWay{"single", 2, "off", "single"}),
                         [](const auto& info) { return std::string(info.param.name); });

/// Every operation between all ranks of a world.
void use_everything(World& world, std::size_t bytes) {
  auto window = must(Window::allocate(world, bytes * static_cast<std::size_t>(world.size())));
  const int rank = world.rank();
  const std::vector<std::byte> mine(bytes, static_cast<std::byte>(world.world_rank(rank) + 1));
  for (int peer = 0; peer < world.size(); ++peer) {
    must(window.put_signal(peer, static_cast<std::size_t>(rank) * bytes, mine.data(), bytes,
                           {static_cast<std::size_t>(rank), 1}));
  }
  for (int peer = 0; peer < world.size(); ++peer) {
    must(window.wait_signal(static_cast<std::size_t>(peer), Comparison::equal, 1, {}, peer));
    const auto at = static_cast<std::size_t>(peer) * bytes;
    EXPECT_EQ(window.local()[at], static_cast<std::byte>(world.world_rank(peer) + 1));
    EXPECT_EQ(window.local()[at + bytes - 1], static_cast<std::byte>(world.world_rank(peer) + 1));
  }
  must(window.barrier());
  const int next = (rank + 1) % world.size();
  std::vector<std::byte> got(bytes);
  must(window.wait(must(window.get(next, static_cast<std::size_t>(rank) * bytes, got.data(), bytes))));
  EXPECT_EQ(got, mine);
  must(window.barrier());
  must(window.put_value<std::uint64_t>(rank, 0, 0));
  must(window.barrier());
  std::uint64_t before = 0;
  const Ticket added = must(window.fetch_atomic<std::uint64_t>(0, 0, AtomicOp::add, &before, 1));
  EXPECT_TRUE(added.number == 0 || added.peer == 0) << "a ticket names the rank of its world";
  must(window.wait(added));
  EXPECT_LT(before, static_cast<std::uint64_t>(world.size()));
  const std::vector<PutBlock> blocks{{mine.data(), 8, 1}, {mine.data(), 12, 1}};
  must(window.wait(must(window.put_vector(next, blocks))));
  must(window.fence());
  must(window.quiet());
  must(window.barrier());
  if (rank == 0) {
    std::uint64_t sum = 0;
    std::memcpy(&sum, window.local().data(), sizeof sum);
    EXPECT_EQ(sum, static_cast<std::uint64_t>(world.size()));
  }
  must(world.barrier());
  must(window.close());
}

TEST_P(SplitTest, RanksOfOneColorAreAWorldInTheOrderOfTheirKeys) {
  run_ranks(5, settings(), [](World& world) {
    // Even ranks backwards; odd ones with equal keys.
    const bool even = world.rank() % 2 == 0;
    auto half = must(world.split(even ? 7 : 3, even ? -world.rank() : 0));
    ASSERT_TRUE(half.has_value());
    EXPECT_EQ(half->size(), even ? 3 : 2);
    EXPECT_EQ(half->rank(), even ? (4 - world.rank()) / 2 : (world.rank() - 1) / 2);
    for (int rank = 0; rank < half->size(); ++rank) {
      EXPECT_EQ(half->world_rank(rank), even ? 4 - 2 * rank : 1 + 2 * rank);
      EXPECT_EQ(half->translate(rank, world), half->world_rank(rank));
      EXPECT_EQ(world.translate(half->world_rank(rank), *half), rank);
    }
    EXPECT_EQ(half->world_rank(half->size()), -1);
    EXPECT_EQ(half->world_rank(-1), -1);
    EXPECT_EQ(world.translate(even ? 1 : 0, *half), -1) << "it is in the other one";
    EXPECT_EQ(world.world_rank(4), 4);
    use_everything(*half, 1000);
    use_everything(*half, 100'000);
    use_everything(world, 1000);
  });
}

/// What becomes of an operation is told to its own user, and keeps no rank from a collective call.
TEST_P(SplitTest, AFailedOperationOfAnotherWindowIsNotTheSubWorlds) {
  run_ranks(3, settings(), [](World& world) {
    auto pair = must(world.split(world.rank() == 2 ? -1 : 0));
    std::optional<Window> gone(must(Window::allocate(world, 64)));
    must(world.barrier());
    if (world.rank() == 1) gone.reset();
    must(world.barrier());
    const std::uint64_t value = 1;
    const bool refused = world.rank() == 0 && std::string(GetParam().shared_memory) == "off";
    if (refused) must(gone->put(1, 0, &value, sizeof value));
    std::optional<Window> made;
    if (pair) {
      must(pair->barrier());
      made.emplace(must(Window::allocate(*pair, 64)));
      EXPECT_TRUE(must(pair->split(0)).has_value());
    }
    must(world.barrier());
    if (refused) {
      EXPECT_FALSE(gone->quiet()) << "it was told to somebody else";
    }
    must(world.barrier());
    gone.reset();
    must(world.barrier());
  });
}

TEST_P(SplitTest, ANegativeColorIsNoWorld) {
  run_ranks(3, settings(), [](World& world) {
    auto pair = must(world.split(world.rank() == 1 ? -1 : 0));
    EXPECT_EQ(pair.has_value(), world.rank() != 1);
    if (pair) use_everything(*pair, 64);
    must(world.barrier());
    auto none = must(world.split(-5));
    EXPECT_FALSE(none.has_value());
    auto alone = must(world.split(world.rank()));
    ASSERT_TRUE(alone.has_value());
    EXPECT_EQ(alone->size(), 1);
    use_everything(*alone, 64);
    auto all = must(world.split(0, -world.rank()));
    ASSERT_TRUE(all.has_value());
    EXPECT_EQ(all->rank(), 2 - world.rank());
    use_everything(*all, 64);
  });
}

TEST_P(SplitTest, NestAsDeepAsOneLikes) {
  run_ranks(6, settings(), [](World& world) {
    auto row = must(world.split(world.rank() / 3, -world.rank()));
    auto column = must(world.split(world.rank() % 3, world.rank()));
    ASSERT_TRUE(row && column);
    EXPECT_EQ(row->rank(), 2 - world.rank() % 3);
    EXPECT_EQ(column->rank(), world.rank() / 3);
    auto corner = must(row->split(row->rank() == 1 ? -1 : 0, row->rank()));
    EXPECT_EQ(corner.has_value(), row->rank() != 1);
    if (corner) {
      EXPECT_EQ(corner->size(), 2);
      EXPECT_EQ(corner->world_rank(0), world.rank() / 3 * 3 + 2);
      EXPECT_EQ(corner->translate(1, *row), 2);
      EXPECT_EQ(corner->translate(1, *column), world.rank() % 3 == 0 ? world.rank() / 3 : -1);
      use_everything(*corner, 3000);
    }
    use_everything(*row, 64);
    use_everything(*column, 64);
  });
}

TEST_P(SplitTest, MayOutliveTheWorldThatItCameFrom) {
  ThreadRendezvous rendezvous(4);
  std::vector<std::thread> ranks;
  const Settings mine = settings();
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      ThreadBootstrap bootstrap(rendezvous, rank);
      std::optional<World> world(must(World::open({.settings = &mine, .bootstrap = &bootstrap})));
      auto half = must(world->split(rank % 2));
      world.reset();
      use_everything(*half, 5000);
      auto quarter = must(half->split(half->rank()));
      half.reset();
      use_everything(*quarter, 64);
    });
  }
  for (auto& rank : ranks) rank.join();
}

/// More than a page of what ranks tell each other.
TEST_P(SplitTest, WindowsWithLongRefusalsAndManyOfThem) {
  run_ranks(4, settings(), [](World& world) {
    auto half = must(world.split(world.rank() / 2));
    for (int i = 0; i < 20; ++i) {
      auto window = must(Window::allocate(*half, 64));
      must(window.barrier());
      must(window.close());
    }
    auto wrong = Window::allocate(*half, half->rank() == 0 ? 64 : 128);
    ASSERT_FALSE(wrong.ok());
    EXPECT_EQ(wrong.error().where().peer, 1 - half->rank()) << wrong.error().text();
    use_everything(*half, 64);
  });
}

/// Rank 3 dies: in the world of the odd ranks it is rank 1. The even ones do not notice, in their world.
TEST_P(SplitTest, ALostRankIsNamedByBothItsRanks) {
  const Settings mine = settings();
  run_processes(
      4, [&](int) { return mine; },
      [](World& world, ProcessRendezvous& rendezvous) {
        auto half = must(world.split(world.rank() % 2));
        auto everyone = must(Window::allocate(world, 64));
        auto window = must(Window::allocate(*half, 4096));
        must(window.barrier());
        if (world.rank() == 3) {
          rendezvous.notes[0] = 1;
          ::raise(SIGKILL);
        }
        while (rendezvous.notes[0] == 0) ::sched_yield();
        if (world.rank() % 2 == 0) {
          // Its loss is known here too: the larger world's window says so.
          Result<void> gone;
          while (gone.ok()) {
            if (auto put = everyone.put_value<int>(3, 0, 1); !put) gone = std::move(put.error());
            if (gone.ok()) gone = everyone.quiet(3);
          }
          EXPECT_EQ(gone.error().where().peer, 3) << gone.error().text();
          for (int i = 0; i < 20; ++i) must(window.barrier());
          must(half->barrier());
          must(window.close());
          return;
        }
        const std::uint64_t value = 7;
        Result<void> told;
        while (told.ok()) {
          if (auto put = window.put(1, 0, &value, sizeof value); !put) told = std::move(put.error());
          if (told.ok()) told = window.quiet(1);
        }
        const auto named = [](const Error& error) {
          EXPECT_EQ(error.status(), Status::peer_lost) << error.text();
          EXPECT_EQ(error.where().peer, 1) << error.text();
          EXPECT_NE(error.text().find("the world's rank 3 is rank 1 of this sub-world"), std::string::npos)
              << error.text();
        };
        named(told.error());
        named(window.put(1, 0, &value, sizeof value).error());
        named(window.get_strided(1, 0, const_cast<std::uint64_t*>(&value), {1, 8, 8, 8}).error());
        named(window.barrier().error());
        named(window.wait_signal(0, Comparison::equal, 1, {}, 1).error());
        const auto hopeless = window.wait_signal(0, Comparison::equal, 1);
        EXPECT_EQ(hopeless.status(), Status::peer_lost) << "every other rank of this world is gone";
        must(window.put(0, 0, &value, sizeof value));
      },
      {3});
}

TEST(Split, OfAnotherWorldsRankIsNothing) {
  run_ranks(1, loopback_settings(1), [](World& world) {
    run_ranks(1, loopback_settings(1), [&](World& other) {
      EXPECT_EQ(world.translate(0, other), -1);
      EXPECT_EQ(world.translate(0, world), 0);
      EXPECT_EQ(world.translate(1, world), -1);
    });
  });
}

}  // namespace
}  // namespace railyard
