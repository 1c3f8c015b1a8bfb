/// Each call of device::Window, through the proxy and on mapped memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "device_world.hpp"

namespace railyard {
namespace {

using device::Scope;

class DeviceCalls : public OnEveryBed {};
INSTANTIATE_TEST_SUITE_P(Beds, DeviceCalls, ::testing::ValuesIn(kBeds), name_of_bed);

template <Scope scope>
void every_size(Node& node, std::uint64_t& round) {
  const device::Window& kernel = node.kernel;
  const std::size_t most = node.window.local().size();
  Random random(11);
  for (const std::size_t bytes : {0UL, 1UL, 2UL, 3UL, 7UL, 8UL, 9UL, 16UL, 23UL, 24UL, 25UL, 64UL, 100UL, 1000UL,
                                  4096UL, 5001UL, 65536UL, 70'003UL, 1UL << 20}) {
    ++round;
    const std::size_t offset = random.below(std::min<std::size_t>(most - bytes, 200) + 1);
    const auto sent = device_pattern(bytes + 3, round);
    const std::span<const std::byte> message = std::span(sent).subspan(round % 4, bytes);
    for (const int origin : {0, 1}) {
      if (node.world.rank() == origin) {
        const device::Ticket ticket = kernel.put_signal<scope>(node.peer, offset, message.data(), bytes, {3, 1});
        ASSERT_TRUE(ticket.ok());
        ASSERT_EQ(kernel.wait<scope>(ticket), device::Status::ok);
      } else {
        std::uint64_t held = 0;
        ASSERT_EQ(kernel.wait_signal<scope>(3, device::Comparison::greater_equal, round, 1 - node.world.rank(), &held),
                  device::Status::ok);
        EXPECT_EQ(held, round);
        ASSERT_TRUE(device_holds(node.window, offset, message)) << bytes << " bytes at " << offset;
      }
    }
  }
}

TEST_P(DeviceCalls, EveryByteIsThereAtItsSignalAtEveryScope) {
  run(2, (1 << 20) + 300, [](Node& node) {
    std::uint64_t round = 0;
    every_size<Scope::thread>(node, round);
    every_size<Scope::warp>(node, round);
    every_size<Scope::block>(node, round);
    must(node.proxy.status());
    if (GetParam() == Bed::mapped) {
      EXPECT_EQ(node.proxy.commands(), 0U) << "kernels wrote by themselves";
    } else {
      EXPECT_EQ(node.proxy.commands(), round);
    }
  });
}

/// What a kernel knows of peers comes with its arguments, of others from a table. Eight bytes, aligned and not.
TEST_P(DeviceCalls, PeersOfTheArgumentsAndOfTheTable) {
  run(3, 4096, [](Node& node) {
    const auto place_of = [](int rank) { return static_cast<std::size_t>(rank) * 64; };
    std::uint64_t round = 0;
    for (const std::uint32_t first_close : {0U, 1U, 3U}) {
      device::detail::Handle handle = node.kernel.handle();
      for (std::uint32_t i = 0; i + first_close < handle.size; ++i) handle.close[i] = handle.peers[i + first_close];
      handle.first_close = first_close;
      const device::Window kernel(handle);
      ++round;
      const auto word_of = [round](int from) { return round << 32 | static_cast<std::uint64_t>(from); };
      const int me = node.world.rank();
      const std::uint64_t mine = word_of(me);
      for (int to = 0; to < 3; ++to) {
        EXPECT_TRUE(kernel.put_signal(to, place_of(me), &mine, sizeof mine, {1}).ok());
        EXPECT_TRUE(kernel.put_signal(to, place_of(me) + 19, &mine, sizeof mine, {1}).ok());
      }
      EXPECT_EQ(kernel.wait_signal(1, device::Comparison::equal, round * 6), device::Status::ok);
      for (int from = 0; from < 3; ++from) {
        const std::uint64_t word = word_of(from);
        EXPECT_TRUE(device_holds(node.window, place_of(from), std::as_bytes(std::span(&word, 1))));
        EXPECT_TRUE(device_holds(node.window, place_of(from) + 19, std::as_bytes(std::span(&word, 1))));
      }
      must(node.window.barrier());
    }
    EXPECT_EQ(node.proxy.commands() == 0, GetParam() == Bed::mapped);
    EXPECT_NE(node.kernel.put(3, 0, &round, sizeof round).number(), 0U) << "no such rank: the proxy says so";
  });
}

TEST_P(DeviceCalls, CountersAdvanceWhenSourcesAreFree) {
  run(2, 1 << 20, [](Node& node) {
    const auto sent = device_pattern(300'000, 5);
    const device::Window& kernel = node.kernel;
    if (node.world.rank() == 0) {
      EXPECT_EQ(kernel.read_counter(2), 0U);
      EXPECT_TRUE(kernel.put_counter(1, 0, sent.data(), sent.size(), {2}).ok());
      EXPECT_TRUE(kernel.put_counter(1, 400'000, sent.data(), 16, {2, 5}).ok());
      EXPECT_TRUE(kernel.put_signal_counter(1, 300'000, sent.data(), 1000, {4, 9}, {2, 10}).ok());
      std::uint64_t held = 0;
      EXPECT_EQ(kernel.wait_counter(2, 16, &held), device::Status::ok);
      EXPECT_EQ(held, 16U);
      EXPECT_EQ(kernel.read_counter(2), 16U);
      EXPECT_EQ(node.window.read_counter(2), 16U) << "the host's view";
    } else {
      EXPECT_EQ(kernel.wait_signal(4, device::Comparison::equal, 9), device::Status::ok);
      EXPECT_TRUE(device_holds(node.window, 0, sent));
      EXPECT_TRUE(device_holds(node.window, 400'000, std::span(sent).first(16)));
      EXPECT_TRUE(device_holds(node.window, 300'000, std::span(sent).first(1000)));
    }
  });
}

TEST_P(DeviceCalls, ValuesOfEveryWidth) {
  run(2, 4096, [](Node& node) {
    const device::Window& kernel = node.kernel;
    if (node.world.rank() == 0) {
      EXPECT_TRUE(kernel.put_value<Scope::thread>(1, 0, std::uint8_t{0xa1}).ok());
      EXPECT_TRUE(kernel.put_value<Scope::warp>(1, 2, std::uint16_t{0xb2c3}).ok());
      EXPECT_TRUE(kernel.put_value<Scope::block>(1, 4, std::uint32_t{0xd4e5f607}).ok());
      EXPECT_TRUE(kernel.put_value(1, 8, ~std::uint64_t{0}).ok());
      EXPECT_TRUE(kernel.put_value(1, 16, 2.5).ok());
      EXPECT_TRUE(kernel.signal(1, {0, ~std::uint64_t{0}, device::SignalOp::set}).ok());
    } else {
      EXPECT_EQ(kernel.wait_signal(0, device::Comparison::equal, ~std::uint64_t{0}), device::Status::ok);
      const auto read = [&]<typename T>(std::size_t at, T) {
        T value;
        std::memcpy(&value, node.window.local().data() + at, sizeof value);
        return value;
      };
      EXPECT_EQ(read(0, std::uint8_t{}), 0xa1);
      EXPECT_EQ(read(2, std::uint16_t{}), 0xb2c3);
      EXPECT_EQ(read(4, std::uint32_t{}), 0xd4e5f607U);
      EXPECT_EQ(read(8, std::uint64_t{}), ~std::uint64_t{0});
      EXPECT_EQ(read(16, double{}), 2.5);
    }
  });
}

TEST_P(DeviceCalls, SixComparisons) {
  run(2, 64, [](Node& node) {
    const device::Window& kernel = node.kernel;
    using device::Comparison;
    if (node.world.rank() == 0) {
      EXPECT_TRUE(kernel.signal(1, {0, 5}).ok());
      return;
    }
    EXPECT_EQ(kernel.wait_signal(0, Comparison::equal, 5), device::Status::ok);
    EXPECT_EQ(kernel.wait_signal(0, Comparison::not_equal, 4), device::Status::ok);
    EXPECT_EQ(kernel.wait_signal(0, Comparison::less, 6), device::Status::ok);
    EXPECT_EQ(kernel.wait_signal(0, Comparison::less_equal, 5), device::Status::ok);
    EXPECT_EQ(kernel.wait_signal(0, Comparison::greater, 4), device::Status::ok);
    EXPECT_EQ(kernel.wait_signal(0, Comparison::greater_equal, 5), device::Status::ok);
    EXPECT_EQ(kernel.read_signal(0), 5U);
    const device::Window brief = kernel.with_budget(2'000'000);
    EXPECT_EQ(brief.wait_signal(0, Comparison::equal, 4), device::Status::timeout);
    EXPECT_EQ(brief.wait_signal(0, Comparison::not_equal, 5), device::Status::timeout);
    EXPECT_EQ(brief.wait_signal(0, Comparison::less, 5), device::Status::timeout);
    EXPECT_EQ(brief.wait_signal(0, Comparison::less_equal, 4), device::Status::timeout);
    EXPECT_EQ(brief.wait_signal(0, Comparison::greater, 5), device::Status::timeout);
    EXPECT_EQ(brief.wait_signal(0, Comparison::greater_equal, 6), device::Status::timeout);
    EXPECT_EQ(kernel.wait_signal(64, Comparison::equal, 0), device::Status::invalid);
    EXPECT_EQ(kernel.wait_signal(0, static_cast<Comparison>(6), 0), device::Status::invalid);
    EXPECT_EQ(kernel.wait_counter(64, 0), device::Status::invalid);
    node.proxy.resume();
  });
}

TEST_P(DeviceCalls, QuietAndFence) {
  run(2, 1 << 20, [](Node& node) {
    const device::Window& kernel = node.kernel;
    if (node.world.rank() != 0) {
      EXPECT_EQ(kernel.wait_signal(1, device::Comparison::equal, 1), device::Status::ok);
      for (std::size_t at = 0; at < 64; ++at) EXPECT_EQ(node.window.local()[at * 1000], std::byte{2}) << at;
      return;
    }
    EXPECT_EQ(kernel.quiet(), device::Status::ok) << "nothing was posted";
    EXPECT_EQ(kernel.fence(), device::Status::ok);
    std::vector<std::byte> first(1000, std::byte{1});
    std::vector<std::byte> second(1000, std::byte{2});
    for (std::size_t at = 0; at < 64; ++at) EXPECT_TRUE(kernel.put(1, at * 1000, first.data(), 1000).ok());
    // The same bytes again: without the fence either might win.
    EXPECT_EQ(kernel.fence(1), device::Status::ok);
    for (std::size_t at = 0; at < 64; ++at) EXPECT_TRUE(kernel.put(1, at * 1000, second.data(), 1000).ok());
    EXPECT_EQ(kernel.quiet<Scope::warp>(1), device::Status::ok);
    EXPECT_EQ(kernel.quiet<Scope::block>(), device::Status::ok);
    EXPECT_TRUE(kernel.signal(1, {1}).ok());
    EXPECT_EQ(kernel.fence(2), device::Status::invalid);
    EXPECT_EQ(kernel.quiet(2), device::Status::invalid);
  });
}

TEST_P(DeviceCalls, BarriersAreUsedAgainAndAgain) {
  constexpr int kRanks = 3;
  run(kRanks, 4096,
      [](Node& node) {
        const device::Window& kernel = node.kernel;
        const int rank = node.world.rank();
        for (std::uint64_t round = 1; round <= 200; ++round) {
          for (int to = 0; to < kRanks; ++to) {
            EXPECT_TRUE(kernel.put_value(to, static_cast<std::size_t>(rank) * 8, round).ok());
          }
          ASSERT_EQ(kernel.barrier<Scope::block>(round % 2), device::Status::ok);
          for (int from = 0; from < kRanks; ++from) {
            std::uint64_t seen = 0;
            std::memcpy(&seen, node.window.local().data() + from * 8, sizeof seen);
            ASSERT_EQ(seen, round) << "from " << from;
          }
          ASSERT_EQ(kernel.barrier(round % 2), device::Status::ok);
        }
        EXPECT_EQ(kernel.barrier(2), device::Status::invalid);
      },
      {.barriers = 2, .barrier_signal = 60});
}

/// Every rank puts a block of its own to every rank, and one signal for each.
TEST_P(DeviceCalls, AllToAll) {
  constexpr int kRanks = 4;
  run(kRanks, kRanks * 8192,
      [](Node& node) {
        const device::Window& kernel = node.kernel;
        const auto rank = static_cast<std::uint64_t>(node.world.rank());
        std::vector<std::vector<std::byte>> blocks;
        for (std::uint64_t round = 1; round <= 20; ++round) {
          for (std::uint64_t to = 0; to < kRanks; ++to) {
            blocks.push_back(device_pattern(5000, rank * 100 + to + round * 10'000));
            EXPECT_TRUE(kernel.put_signal(static_cast<int>(to), rank * 8192, blocks.back().data(), 5000, {0}).ok());
          }
          ASSERT_EQ(kernel.wait_signal(0, device::Comparison::greater_equal, round * kRanks), device::Status::ok);
          for (std::uint64_t from = 0; from < kRanks; ++from) {
            ASSERT_TRUE(
                device_holds(node.window, from * 8192, device_pattern(5000, from * 100 + rank + round * 10'000)));
          }
          ASSERT_EQ(kernel.barrier(), device::Status::ok);
        }
      },
      {.barriers = 1, .barrier_signal = 8});
}

}  // namespace
}  // namespace railyard
