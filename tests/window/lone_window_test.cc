#include "window/lone_window.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "base/random.hpp"
#include "gpu_memory.hpp"
#include "process_world.hpp"

namespace railyard {
namespace {

using Bytes = std::vector<std::byte>;

Bytes lone_pattern(std::size_t bytes, std::uint64_t seed) {
  Bytes made(bytes);
  Random random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

/// Whole words, so that an atomic finds them aligned.
struct Words {
  explicit Words(std::size_t bytes) : words(bytes / sizeof(std::uint64_t)) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words)); }
  std::uint64_t load(std::size_t index) {
    return std::atomic_ref<std::uint64_t>(words[index]).load(std::memory_order_acquire);
  }
  std::vector<std::uint64_t> words;
};

struct LoneWay {
  const char* name;
  std::uint32_t rails;
  const char* shared_memory;
};
class LoneWindowTest : public ::testing::TestWithParam<LoneWay> {
 protected:
  Settings settings() const {
    Settings settings = loopback_settings(GetParam().rails);
    settings.shared_memory = GetParam().shared_memory;
    return settings;
  }
};
INSTANTIATE_TEST_SUITE_P(Rails, LoneWindowTest,
                         ::testing::Values(LoneWay{"1rail", 1, "off"}, LoneWay{"4rails", 4, "off"},
                                           LoneWay{"shm", 2, "on"}),
                         [](const auto& info) { return std::string(info.param.name); });

/// The windows of all other ranks, whose descriptions go round by the test's own means; this rank's is left out.
std::vector<std::optional<Window>> exchange(World& world, ThreadRendezvous& round, const Window& mine) {
  const auto all = round.meet(world.rank(), must(LoneWindow::describe(mine)));
  std::vector<std::optional<Window>> windows(all.size());
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) continue;
    windows[static_cast<std::size_t>(rank)] =
        must(LoneWindow::import(world, rank, all[static_cast<std::size_t>(rank)]));
  }
  return windows;
}

TEST_P(LoneWindowTest, EveryRankReachesWhatTheOthersOpenedAlone) {
  constexpr int kRanks = 3;
  constexpr std::size_t kBytes = 300'000;
  ThreadRendezvous round(kRanks);
  run_ranks(kRanks, settings(), [&](World& world) {
    Words memory(kRanks * kBytes + 64);
    auto mine = must(LoneWindow::open(world, memory.bytes()));
    auto theirs = exchange(world, round, mine);
    const std::size_t words_at = kRanks * kBytes;
    const auto my_slot = static_cast<std::size_t>(world.rank()) * kBytes;
    const Bytes sent = lone_pattern(kBytes, static_cast<std::uint64_t>(world.rank()));
    for (int rank = 0; rank < kRanks; ++rank) {
      Window& window = rank == world.rank() ? mine : *theirs[static_cast<std::size_t>(rank)];
      EXPECT_EQ(window.bytes(rank), memory.bytes().size());
      must(window.put(rank, my_slot, sent.data(), kBytes - 10));
      must(window.put(rank, my_slot + kBytes - 10, sent.data() + kBytes - 10, 10));  // travels inside a message
      must(window.atomic<std::uint64_t>(rank, words_at, AtomicOp::add, 1));
      must(window.atomic<std::uint32_t>(rank, words_at + 8, AtomicOp::increment, 0));
      must(window.quiet(rank));
    }
    round.meet(world.rank(), {});
    EXPECT_EQ(memory.load(words_at / 8), kRanks);
    EXPECT_EQ(memory.load(words_at / 8 + 1), kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      const Bytes expected = lone_pattern(kBytes, static_cast<std::uint64_t>(rank));
      const auto slot = static_cast<std::size_t>(rank) * kBytes;
      EXPECT_EQ(std::memcmp(memory.bytes().data() + slot, expected.data(), kBytes), 0) << rank;
      if (rank == world.rank()) continue;
      Window& window = *theirs[static_cast<std::size_t>(rank)];
      Bytes got(kBytes);
      must(window.wait(must(window.get(rank, my_slot, got.data(), kBytes))));
      EXPECT_EQ(got, sent) << rank;
      std::uint64_t before = 0;
      must(window.wait(must(window.fetch_atomic(rank, words_at, AtomicOp::fetch, &before))));
      EXPECT_EQ(before, kRanks);
    }
    round.meet(world.rank(), {});
  });
}

TEST_P(LoneWindowTest, AnAtomicComesAfterEarlierPutsToOtherWindows) {
  constexpr int kRounds = 30;
  constexpr std::size_t kBytes = 600'000;
  ThreadRendezvous round(2);
  run_ranks(2, settings(), [&](World& world) {
    Words data(kBytes);
    Words flags(64);
    auto my_data = must(LoneWindow::open(world, data.bytes()));
    auto my_flags = must(LoneWindow::open(world, flags.bytes()));
    auto data_there = exchange(world, round, my_data);
    auto flags_there = exchange(world, round, my_flags);
    if (world.rank() == 0) {
      for (std::uint64_t turn = 1; turn <= kRounds; ++turn) {
        const Bytes sent = lone_pattern(kBytes, turn);
        must(data_there[1]->put(1, 0, sent.data(), kBytes));
        must(flags_there[1]->atomic<std::uint64_t>(1, 8, AtomicOp::set, turn));
        must(flags_there[1]->quiet(1));
        while (flags.load(2) < turn) world.progress();
      }
    } else {
      for (std::uint64_t turn = 1; turn <= kRounds; ++turn) {
        while (flags.load(1) < turn) world.progress();
        const Bytes expected = lone_pattern(kBytes, turn);
        ASSERT_EQ(std::memcmp(data.bytes().data(), expected.data(), kBytes), 0) << turn;
        must(flags_there[0]->atomic<std::uint64_t>(0, 16, AtomicOp::set, turn));
      }
      must(flags_there[0]->quiet(0));
    }
    round.meet(world.rank(), {});
  });
}

TEST_P(LoneWindowTest, MemoryThatItsOwnerTookBackIsRefusedAndNothingElseIs) {
  ThreadRendezvous round(2);
  run_ranks(2, settings(), [&](World& world) {
    Words kept(4096);
    Words returned(4096);
    auto stays = must(LoneWindow::open(world, kept.bytes()));
    std::optional<Window> goes = must(LoneWindow::open(world, returned.bytes()));
    auto stays_there = exchange(world, round, stays);
    auto gone_there = exchange(world, round, *goes);
    if (world.rank() == 1) {
      must(goes->close());  // alone: the other rank is not asked
      goes.reset();
    }
    round.meet(world.rank(), {});
    if (world.rank() == 0) {
      const Bytes sent = lone_pattern(1000, 1);
      must(gone_there[1]->put(1, 0, sent.data(), sent.size()));
      const auto refused = gone_there[1]->quiet(1);
      EXPECT_EQ(refused.status(), Status::not_found) << (refused ? "" : refused.error().text());
      must(stays_there[1]->put(1, 0, sent.data(), sent.size()));
      must(stays_there[1]->atomic<std::uint64_t>(1, 2048, AtomicOp::set, 7));
      must(stays_there[1]->quiet(1));
    }
    round.meet(world.rank(), {});
    if (world.rank() == 1) {
      EXPECT_EQ(kept.load(256), 7U);
      EXPECT_EQ(returned.load(0), 0U);
    }
  });
}

TEST(LoneWindowMisuse, IsRefusedByName) {
  ThreadRendezvous round(2);
  run_ranks(2, loopback_settings(2), [&](World& world) {
    Words memory(4096);
    auto mine = must(LoneWindow::open(world, memory.bytes()));
    const auto description = must(LoneWindow::describe(mine));
    EXPECT_EQ(description.size(), LoneWindow::description_bytes(world.rail_count()));
    const auto all = round.meet(world.rank(), description);
    const int other = 1 - world.rank();
    Bytes theirs = all[static_cast<std::size_t>(other)];
    const auto refuse = [&](int rank, std::span<const std::byte> bytes, Status status, const char* text) {
      auto window = LoneWindow::import(world, rank, bytes);
      ASSERT_FALSE(window);
      EXPECT_EQ(window.status(), status);
      EXPECT_NE(window.error().text().find(text), std::string::npos) << window.error().text();
    };
    for (std::size_t bytes = 0; bytes < theirs.size(); ++bytes)
      refuse(other, std::span(theirs).first(bytes), Status::invalid, "describe no memory");
    refuse(2, theirs, Status::out_of_range, "rank 2 does not exist");
    refuse(world.rank(), theirs, Status::invalid, "own memory");
    Bytes longer = theirs;
    longer.push_back({});
    refuse(other, longer, Status::invalid, "describe no memory");
    Bytes one_rail(theirs.begin(), theirs.end() - 8);
    one_rail[33] = std::byte{1};
    refuse(other, one_rail, Status::invalid, "another world");

    auto window = must(LoneWindow::import(world, other, theirs));
    std::uint64_t value = 0;
    const auto check = [&](const auto& result, Status status, const char* text) {
      ASSERT_FALSE(result);
      EXPECT_EQ(result.status(), status);
      EXPECT_NE(result.error().text().find(text), std::string::npos) << result.error().text();
    };
    check(window.put(world.rank(), 0, &value, 8), Status::out_of_range, "not rank");
    check(window.put(other, 4090, &value, 8), Status::out_of_range, "do not fit");
    check(window.put(-1, 0, &value, 8), Status::out_of_range, "does not exist");
    check(window.barrier(), Status::unsupported, "alone");
    check(window.signal(other, {0, 1}), Status::out_of_range, "signal 0");
    check(LoneWindow::describe(window), Status::invalid, "describe");
    check(LoneWindow::open(world, {}), Status::invalid, "memory");
    check(LoneWindow::store_pair(world, nullptr, 1, 2), Status::invalid, "address");
    must(window.fence());
    must(window.quiet());
    must(window.close());
    check(window.put(other, 0, &value, 8), Status::invalid, "closed");
    round.meet(world.rank(), {});
  });
}

TEST(StorePair, FillsHostMemoryAndThatOfAGpu) {
  run_processes(1, [](World& world, ProcessRendezvous&) {
    const test::Gpu gpu;
    std::uint64_t host[2] = {};
    must(LoneWindow::store_pair(world, host, 5, 6));
    EXPECT_EQ(host[0], 5U);
    EXPECT_EQ(host[1], 6U);
    test::GpuMemory device(gpu, 4096);
    const auto window = must(LoneWindow::open(world, {device.data(), device.size()}));
    must(LoneWindow::store_pair(world, device.data() + 16, 7, 8));
    const Bytes held = device.read(16, 16);
    std::memcpy(host, held.data(), sizeof host);
    EXPECT_EQ(host[0], 7U);
    EXPECT_EQ(host[1], 8U);
  });
}

}  // namespace
}  // namespace railyard
