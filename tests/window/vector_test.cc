/// Vector and strided puts and gets: over one rail and several, on mapped memory and on the shared-memory rail.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/random.hpp"
#include "process_world.hpp"

namespace railyard {
namespace {

constexpr std::size_t kWindow = 4 << 20;

struct VectorWay {
  const char* name;
  std::uint32_t rails;
  const char* shared_memory;
};
class VectorTest : public ::testing::TestWithParam<VectorWay> {
 protected:
  Settings settings() const {
    Settings settings = loopback_settings(GetParam().rails);
    settings.shared_memory = GetParam().shared_memory;
    return settings;
  }
};
INSTANTIATE_TEST_SUITE_P(Rails, VectorTest,
                         ::testing::Values(VectorWay{"1rails", 1, "off"}, VectorWay{"3rails", 3, "off"},
                                           VectorWay{"direct", 2, "on"}),
                         [](const auto& info) { return std::string(info.param.name); });

std::vector<std::byte> random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  Random random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

/// Blocks of mixed sizes that do not overlap at the target, in mixed order; and what the target then holds.
struct Scattered {
  Scattered(std::uint64_t seed, std::size_t count, std::size_t most, std::size_t room) : expected(room) {
    Random random(seed);
    source = random_bytes(room, seed);
    std::size_t at = random.below(50);
    for (std::size_t i = 0; i < count && at < room; ++i) {
      const std::size_t limit = random.below(4) == 0 ? most : std::min<std::size_t>(most, 64);
      const std::size_t bytes = std::min<std::size_t>(random.below(limit + 1), room - at);
      const std::size_t from = random.below(room - bytes + 1);
      blocks.push_back({source.data() + from, at, bytes});
      std::copy_n(source.data() + from, bytes, expected.begin() + static_cast<std::ptrdiff_t>(at));
      at += bytes + random.below(3) * random.below(40);  // some follow each other
    }
    for (std::size_t i = blocks.size(); i > 1; --i) {
      if (random.below(2) == 0) std::swap(blocks[i - 1], blocks[random.below(i)]);
    }
  }
  std::vector<std::byte> source;
  std::vector<std::byte> expected;
  std::vector<PutBlock> blocks;
};

/// Rank 0 puts to rank 1, which looks when the signal says so.
void put_scattered(Window& window, int rank, std::size_t room) {
  std::uint64_t round = 0;
  for (const std::size_t most : {std::size_t{64}, std::size_t{1024}, std::size_t{3000}, std::size_t{200'000}}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{300}}) {
      ++round;
      const Scattered made(round, count, most, room);
      if (rank == 0) {
        must(window.wait(must(window.put_vector_signal(1, made.blocks, {2, 3}))));
        must(window.wait_signal(0, Comparison::equal, round));
      } else {
        must(window.wait_signal(2, Comparison::equal, 3 * round));
        EXPECT_TRUE(std::equal(made.expected.begin(), made.expected.end(), window.local().begin()))
            << count << " blocks of up to " << most;
        std::ranges::fill(window.local(), std::byte{0});
        must(window.signal(0, {0, 1}));
      }
    }
  }
  must(window.barrier());
}

TEST_P(VectorTest, ASignalComesAfterAllBlocks) {
  run_ranks(2, settings(), [](World& world) {
    auto window = must(Window::allocate(world, kWindow));
    put_scattered(window, world.rank(), kWindow);
    must(window.close());
  });
}

TEST(SharedMemoryRailVectors, ASignalComesAfterAllBlocks) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    std::vector<std::byte> memory(kWindow);
    auto window = must(Window::adopt(world, memory));
    put_scattered(window, world.rank(), kWindow);
    EXPECT_EQ(world.statistics().direct_puts, 0U) << "memory of the caller's is not mapped";
    must(window.close());
  });
}

TEST_P(VectorTest, GetsBringEveryBlock) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kRoom = 1 << 20;
    auto window = must(Window::allocate(world, kRoom));
    const auto theirs = random_bytes(kRoom, 5 + static_cast<std::uint64_t>(1 - world.rank()));
    const auto mine = random_bytes(kRoom, 5 + static_cast<std::uint64_t>(world.rank()));
    std::ranges::copy(mine, window.local().begin());
    must(window.barrier());
    for (const std::size_t count : {std::size_t{1}, std::size_t{20}, std::size_t{700}}) {
      std::vector<std::byte> got(kRoom);
      std::vector<std::byte> expected(kRoom);
      std::vector<GetBlock> blocks;
      Random random(count);
      for (std::size_t at = 0; blocks.size() < count && at < kRoom;) {
        const std::size_t bytes = std::min<std::size_t>(random.below(3000), kRoom - at);
        const std::size_t from = random.below(kRoom - bytes + 1);
        blocks.push_back({got.data() + at, from, bytes});
        std::copy_n(theirs.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(at));
        at += bytes + random.below(10);
      }
      must(window.wait(must(window.get_vector(1 - world.rank(), blocks))));
      EXPECT_EQ(got, expected) << count;
    }
    must(window.close());
  });
}

TEST_P(VectorTest, NothingMovesWhereABlockIsWrong) {
  run_ranks(2, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 4096));
    if (world.rank() == 0) {
      std::vector<std::byte> source(8192, std::byte{1});
      const auto refused = [&](const Result<Ticket>& result, Status status, const char* says) {
        ASSERT_FALSE(result.ok());
        EXPECT_EQ(result.status(), status) << result.error().text();
        EXPECT_NE(result.error().text().find(says), std::string::npos) << result.error().text();
      };
      std::vector<PutBlock> blocks(5, {source.data(), 0, 100});
      blocks.push_back({source.data(), 4000, 97});
      refused(window.put_vector(1, blocks), Status::out_of_range, "block 5 of 6");
      refused(window.put_vector_signal(1, blocks, {0, 1}), Status::out_of_range, "put_vector_signal");
      blocks.back() = {nullptr, 0, 1};
      refused(window.put_vector(1, blocks), Status::invalid, "null");
      blocks.back() = {source.data(), SIZE_MAX, 2};
      refused(window.put_vector(1, blocks), Status::out_of_range, "block 5");
      blocks.pop_back();
      refused(window.put_vector_signal(1, blocks, {64, 1}), Status::out_of_range, "signal 64");
      refused(window.put_vector(2, blocks), Status::out_of_range, "rank 2");
      const std::vector<GetBlock> gets{{source.data(), 4096, 1}};
      refused(window.get_vector(1, gets), Status::out_of_range, "block 0 of 1");
      refused(window.put_strided(1, 96, source.data(), {5, 100, 100, 1000}), Status::out_of_range, "5 blocks");
      refused(window.put_strided(1, 0, source.data(), {SIZE_MAX, 8, 8, SIZE_MAX / 2}), Status::invalid, "no such");
      refused(window.put_strided(1, 0, source.data(), {3, 8, 8, SIZE_MAX / 2 + 1}), Status::out_of_range, "do not fit");
      refused(window.get_strided(1, 0, nullptr, {1, 8, 8, 8}), Status::invalid, "no such memory");
      must(window.signal(1, {1, 1}));
    } else {
      must(window.wait_signal(1, Comparison::equal, 1));
      EXPECT_TRUE(std::ranges::all_of(window.local(), [](std::byte byte) { return byte == std::byte{0}; }));
      EXPECT_EQ(window.read_signal(0), 0U);
    }
    must(window.barrier());
    must(window.close());
  });
}

TEST_P(VectorTest, NothingAtAllIsAVectorToo) {
  run_ranks(2, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 64));
    if (world.rank() == 0) {
      EXPECT_EQ(must(window.put_vector(1, {})).number, 0U);
      EXPECT_EQ(must(window.get_vector(1, {})).number, 0U);
      const std::vector<PutBlock> empty(3, PutBlock{nullptr, 64, 0});
      EXPECT_EQ(must(window.put_vector(1, empty)).number, 0U);
      EXPECT_EQ(must(window.put_strided(1, 0, nullptr, {0, 8, 8, 8})).number, 0U);
      EXPECT_EQ(must(window.put_strided(1, 0, nullptr, {8, 0, 8, 8})).number, 0U);
      must(window.put_vector_signal(1, {}, {0, 1}));
      must(window.put_vector_signal(1, empty, {0, 1}));
      must(window.put_strided_signal(1, 0, nullptr, {0, 8, 8, 8}, {0, 1}));
    } else {
      must(window.wait_signal(0, Comparison::equal, 3));
    }
    must(window.barrier());
    must(window.close());
  });
}

TEST_P(VectorTest, WhereBlocksOverlapOneOfThemWins) {
  run_ranks(2, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 1 << 20));
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{200'000}}) {
      if (world.rank() == 0) {
        const std::vector<std::byte> first(bytes, std::byte{1});
        const std::vector<std::byte> second(bytes, std::byte{2});
        const std::vector<PutBlock> blocks{
            {first.data(), 0, bytes}, {second.data(), bytes / 2, bytes}, {first.data(), bytes, bytes}};
        must(window.wait(must(window.put_vector_signal(1, blocks, {0, 1}))));
        must(window.wait_signal(0, Comparison::greater_equal, bytes == 100 ? 1 : 2));
      } else {
        must(window.wait_signal(0, Comparison::greater_equal, bytes == 100 ? 1 : 2));
        const auto memory = window.local().first(2 * bytes);
        EXPECT_TRUE(
            std::ranges::all_of(memory, [](std::byte one) { return one == std::byte{1} || one == std::byte{2}; }));
        EXPECT_EQ(memory[0], std::byte{1});
        EXPECT_EQ(window.local()[2 * bytes], std::byte{0});
        std::ranges::fill(window.local(), std::byte{0});
        must(window.signal(0, {0, 1}));
      }
    }
    must(window.barrier());
    must(window.close());
  });
}

/// More than any queue holds: the call waits for room, and the signal still comes last.
TEST_P(VectorTest, AHundredThousandBlocksAreOneOperation) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kCount = 120'000;
    auto window = must(Window::allocate(world, kCount * 16));
    std::vector<std::uint64_t> values(kCount);
    for (std::size_t i = 0; i < kCount; ++i) values[i] = i * 3 + 1;
    if (world.rank() == 0) {
      std::vector<PutBlock> blocks;
      for (std::size_t i = 0; i < kCount; ++i) blocks.push_back({&values[i], i * 16, 8});
      must(window.wait(must(window.put_vector_signal(1, blocks, {0, 1}))));
      std::vector<std::uint64_t> got(kCount);
      std::vector<GetBlock> gets;
      for (std::size_t i = 0; i < kCount; ++i) gets.push_back({&got[i], i * 16, 8});
      must(window.wait(must(window.get_vector(1, gets)), Completion::remote, Deadline::in(std::chrono::minutes(2))));
      EXPECT_EQ(got, values);
    } else {
      must(window.wait_signal(0, Comparison::equal, 1));
      for (std::size_t i = 0; i < kCount; ++i) {
        std::uint64_t there[2];
        std::memcpy(there, window.local().data() + i * 16, 16);
        ASSERT_EQ(there[0], values[i]);
        ASSERT_EQ(there[1], 0U);
      }
    }
    must(window.barrier(Deadline::in(std::chrono::minutes(2))));
    must(window.close());
  });
}

TEST_P(VectorTest, SourcesOfSmallBlocksAreFreeAtOnce) {
  run_ranks(2, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 1 << 16));
    if (world.rank() == 0) {
      std::vector<std::byte> source(100 * 64, std::byte{7});
      std::vector<PutBlock> blocks;
      for (std::size_t i = 0; i < 100; ++i) blocks.push_back({source.data() + i * 64, i * 128, 64});
      const Ticket ticket = must(window.put_vector_signal(1, blocks, {0, 1}));
      EXPECT_TRUE(must(window.test(ticket, Completion::local)));
      std::ranges::fill(source, std::byte{9});
      blocks.clear();
      must(window.wait(ticket));
    } else {
      must(window.wait_signal(0, Comparison::equal, 1));
      for (std::size_t i = 0; i < 100; ++i) {
        EXPECT_EQ(window.local()[i * 128], std::byte{7});
        EXPECT_EQ(window.local()[i * 128 + 63], std::byte{7});
        EXPECT_EQ(window.local()[i * 128 + 64], std::byte{0});
      }
    }
    must(window.barrier());
    must(window.close());
  });
}

/// A 2-D block inside a larger array, as halo exchanges have it.
TEST_P(VectorTest, StridesMoveABlockOfAGrid) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kSide = 300;
    for (const std::size_t columns : {std::size_t{1}, std::size_t{10}, std::size_t{200}, kSide}) {
      constexpr std::size_t kRows = 250;
      auto window = must(Window::allocate(world, kSide * kSide * sizeof(double)));
      auto* const grid = reinterpret_cast<double*>(window.local().data());
      const Strides strides{kRows, columns * sizeof(double), kSide * sizeof(double), kSide * sizeof(double)};
      std::vector<double> mine(kSide * kSide);
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<double>(i + 1);
      const std::size_t at = (20 * kSide) * sizeof(double);
      if (world.rank() == 0) {
        must(window.put_strided_signal(1, at, mine.data() + 3 * kSide, strides, {0, 1}));
        must(window.quiet());
        std::vector<double> back(kSide * kSide);
        must(window.wait(must(window.get_strided(1, at, back.data(), strides))));
        for (std::size_t row = 0; row < kRows; ++row) {
          for (std::size_t column = 0; column < kSide; ++column) {
            ASSERT_EQ(back[row * kSide + column], column < columns ? mine[(row + 3) * kSide + column] : 0);
          }
        }
      } else {
        must(window.wait_signal(0, Comparison::equal, 1));
        for (std::size_t row = 0; row < kSide; ++row) {
          for (std::size_t column = 0; column < kSide; ++column) {
            const bool inside = row >= 20 && row < 20 + kRows && column < columns;
            ASSERT_EQ(grid[row * kSide + column], inside ? mine[(row - 17) * kSide + column] : 0)
                << row << ", " << column;
          }
        }
      }
      must(window.barrier());
      must(window.close());
    }
  });
}

/// What the rail carries says it: small blocks fill frames, and what is contiguous is one write.
TEST(Vectors, SmallBlocksTravelTogether) {
  run_ranks(2, loopback_settings(1), [](World& world) {
    constexpr std::size_t kCount = 1000;
    constexpr std::size_t kBytes = 64;
    auto window = must(Window::allocate(world, 2 * kCount * kBytes));
    must(window.barrier());
    if (world.rank() == 0) {
      const auto source = random_bytes(2 * kCount * kBytes, 1);
      std::vector<PutBlock> blocks;
      for (std::size_t i = 0; i < kCount; ++i) {
        blocks.push_back({source.data() + i * 2 * kBytes, i * 2 * kBytes, kBytes});
      }
      const auto frames = [&] { return world.statistics().rails[0].frames_sent; };
      const auto timed = [&](double& best, std::uint64_t& sent, auto&& work) {
        const std::uint64_t before = frames();
        const auto begin = std::chrono::steady_clock::now();
        work();
        best =
            std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
        sent += frames() - before;
      };
      double together = 1e9;
      double one_by_one = 1e9;
      std::uint64_t sent_together = 0;
      std::uint64_t sent_one_by_one = 0;
      constexpr int kRounds = 40;
      for (int round = 0; round < kRounds; ++round) {
        timed(together, sent_together, [&] { must(window.wait(must(window.put_vector(1, blocks)))); });
        timed(one_by_one, sent_one_by_one, [&] {
          for (const PutBlock& block : blocks) must(window.put(1, block.offset, block.source, block.bytes));
          must(window.quiet());
        });
      }
      std::printf(
          "%zu blocks of %zu bytes, the best of %d: one vector %.1f us, %zu puts %.1f us: %.2f times as fast; %.1f "
          "frames for %.1f\n",
          kCount, kBytes, kRounds, together, kCount, one_by_one, one_by_one / together,
          static_cast<double>(sent_together) / kRounds, static_cast<double>(sent_one_by_one) / kRounds);
      EXPECT_LE(sent_together, std::uint64_t{kRounds} * 22) << "50 fit into a frame";
      const std::uint64_t writes = world.statistics().rails[0].writes_sent;
      must(window.wait(must(window.put_strided(1, 0, source.data(), {kCount, kBytes, kBytes, kBytes}))));
      EXPECT_LE(world.statistics().rails[0].writes_sent - writes, 2U) << "64,000 bytes without a gap";
    }
    must(window.barrier());
    must(window.close());
  });
}

/// Whatever of a vector fails, its ticket says so, and nothing else suffers.
TEST(Vectors, OneThatIsRefusedFailsAsAWhole) {
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{20'000}}) {
    run_ranks(2, loopback_settings(2), [&](World& world) {
      std::optional<Window> gone(must(Window::allocate(world, 1 << 20)));
      auto stays = must(Window::allocate(world, 1 << 20));
      const std::uint64_t one = 1;
      must(gone->wait(must(gone->put(1 - world.rank(), 0, &one, sizeof one))));
      must(stays.barrier());
      if (world.rank() == 1) gone.reset();
      must(stays.barrier());
      if (world.rank() == 0) {
        const std::vector<std::byte> source(bytes, std::byte{5});
        std::vector<PutBlock> blocks;
        // More frames than may leave at once, so that what follows could still join the last of them.
        const std::size_t count = bytes == 64 ? 3000 : 50;
        for (std::size_t i = 0; i < count; ++i) blocks.push_back({source.data(), i * bytes, bytes});
        const Ticket before = must(stays.put_vector(1, blocks));
        const Ticket failing = must(gone->put_vector_signal(1, blocks, {0, 1}));
        const Ticket small = must(stays.put(1, 0, &one, sizeof one));
        const Ticket between = must(stays.put_vector(1, blocks));
        const Ticket failing_alone = must(gone->put(1, 0, &one, sizeof one));
        const Ticket after = must(stays.put_vector_signal(1, blocks, {1, 1}));
        const auto waited = gone->wait(failing);
        ASSERT_FALSE(waited.ok());
        EXPECT_EQ(waited.error().where().peer, 1) << waited.error().text();
        EXPECT_FALSE(gone->wait(failing_alone).ok());
        must(stays.wait(before));
        must(stays.wait(small));
        must(stays.wait(between));
        must(stays.wait(after));
        std::vector<std::byte> there(50 * bytes);
        std::vector<GetBlock> gets;
        for (std::size_t i = 0; i < 50; ++i) gets.push_back({there.data() + i * bytes, i * 2, bytes});
        EXPECT_FALSE(gone->wait(must(gone->get_vector(1, gets))).ok());
        must(stays.wait(must(stays.get_vector(1, gets))));
        must(stays.quiet());
      } else {
        must(stays.wait_signal(1, Comparison::equal, 1));
        EXPECT_EQ(stays.local()[50 * bytes - 1], std::byte{5});
      }
      must(stays.barrier());
      must(stays.close());
      gone.reset();
    });
  }
}

TEST(Vectors, OfALostPeerFailWithItsName) {
  run_ranks(2, loopback_settings(1), [](World& world) {
    auto window = must(Window::allocate(world, 1 << 20));
    must(window.barrier());
    if (world.rank() == 1) return;  // goes without closing anything
    std::vector<std::byte> source(1 << 19);
    const std::vector<PutBlock> blocks{{source.data(), 0, 64}, {source.data(), 100, 1 << 19}, {source.data(), 64, 10}};
    const std::vector<GetBlock> gets{{source.data(), 0, 1000}, {source.data() + 5000, 5000, 1000}};
    Result<void> told;
    while (told.status() != Status::peer_lost) {  // before that, its window is gone
      auto put = window.put_vector_signal(1, blocks, {0, 1});
      auto got = put.ok() ? window.get_vector(1, gets) : std::move(put);
      told = got.ok() ? window.wait(*got) : Result<void>(std::move(got.error()));
      ASSERT_TRUE(told.ok() || told.error().where().peer == 1) << told.error().text();
    }
    EXPECT_EQ(told.status(), Status::peer_lost) << told.error().text();
    EXPECT_EQ(told.error().where().peer, 1);
  });
}

}  // namespace
}  // namespace railyard
