/// Bytes are counted where they arrive, however they came: the counters of both sides agree with what was moved.
#include <gtest/gtest.h>

#include <numeric>

#include "process_world.hpp"

namespace railyard {
namespace {

constexpr std::size_t kLarge = std::size_t{4} << 20U;
constexpr int kTimes = 3;

std::uint64_t total(const World& world, std::uint64_t RailStatistics::*member) {
  const WorldStatistics statistics = world.statistics();
  return std::accumulate(statistics.rails.begin(), statistics.rails.end(), std::uint64_t{0},
                         [&](std::uint64_t sum, const RailStatistics& rail) { return sum + rail.*member; });
}

/// Rank 0 moves `kTimes` times `kLarge` bytes: what each side counted.
void count_both_sides(const Settings& settings, bool get, Order order, std::uint64_t& sent, std::uint64_t& received) {
  std::array<std::atomic<std::uint64_t>, 2> counted{};
  run_ranks(2, settings, [&](World& world) {
    std::vector<std::byte> memory(kLarge);
    std::vector<std::byte> mine(kLarge);
    auto window = must(Window::adopt(world, memory));
    if (world.rank() == 0) {
      for (int i = 0; i < kTimes; ++i) {
        if (get) {
          must(window.wait(must(window.get(1, 0, mine.data(), kLarge))));
        } else {
          must(window.put(1, 0, mine.data(), kLarge, order));
        }
      }
      must(window.quiet());
    }
    must(window.barrier());
    const bool source = (world.rank() == 0) != get;
    counted[source ? 0 : 1] = total(world, source ? &RailStatistics::bytes_sent : &RailStatistics::bytes_received);
    must(window.barrier());
    must(window.close());
  });
  sent = counted[0];
  received = counted[1];
}

struct Way {
  const char* name;
  const char* driver;
  bool get;
  Order order;
};

class BytesMoved : public ::testing::TestWithParam<Way> {};

TEST_P(BytesMoved, AtBothSides) {
  const Way& way = GetParam();
  Settings settings = loopback_settings(2);
  settings.driver = way.driver;
  if (settings.driver == "shm") {
    settings.shared_memory = "on";
    settings.interfaces = "";
  }
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  count_both_sides(settings, way.get, way.order, sent, received);
  // Beside the data there are small messages only.
  constexpr std::uint64_t kData = kTimes * kLarge;
  EXPECT_GE(sent, kData);
  EXPECT_LE(sent, kData + kData / 50);
  EXPECT_GE(received, kData);
  EXPECT_LE(received, kData + kData / 50);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, BytesMoved,
    ::testing::Values(Way{"TcpPut", "tcp", false, Order::ordered}, Way{"TcpRelaxed", "tcp", false, Order::relaxed},
                      Way{"TcpGet", "tcp", true, Order::ordered}, Way{"ShmPut", "shm", false, Order::ordered},
                      Way{"ShmRelaxed", "shm", false, Order::relaxed}, Way{"ShmGet", "shm", true, Order::ordered}),
    [](const auto& info) { return std::string(info.param.name); });

struct SmallWay {
  const char* name;
  const char* driver;
  bool get;
};

class SmallBytesMoved : public ::testing::TestWithParam<SmallWay> {};

/// One at a time, so that each has an acknowledgement of its own: what goes back is as much a part of the traffic.
TEST_P(SmallBytesMoved, WhatOneSideSentTheOtherReceived) {
  constexpr int kSmall = 2000;
  const SmallWay& way = GetParam();
  Settings settings = loopback_settings(2);
  settings.driver = way.driver;
  if (settings.driver == "shm") {
    settings.shared_memory = "on";
    settings.interfaces = "";
  }
  std::array<std::atomic<std::uint64_t>, 2> sent{};
  std::array<std::atomic<std::uint64_t>, 2> received{};
  run_ranks(2, settings, [&](World& world) {
    std::vector<std::byte> memory(4096);
    auto window = must(Window::adopt(world, memory));
    std::uint64_t word = 1;
    for (int i = 0; i < kSmall && world.rank() == 0; ++i) {
      const std::uint64_t at = 8U * static_cast<unsigned>(i % 500);
      must(window.wait(way.get ? must(window.get(1, at, &word, sizeof word))
                               : must(window.put_signal(1, at, &word, sizeof word, {0, 1}))));
    }
    must(window.barrier());
    const auto rank = static_cast<std::size_t>(world.rank());
    sent[rank] = total(world, &RailStatistics::bytes_sent);
    received[rank] = total(world, &RailStatistics::bytes_received);
    must(window.barrier());
    must(window.close());
  });
  for (const std::size_t from : {0U, 1U}) {
    const auto gone = static_cast<double>(sent[from]);
    const auto come = static_cast<double>(received[1 - from]);
    // What the barrier itself sends may still be on its way when one side looks: that is a few messages.
    EXPECT_NEAR(gone, come, 0.01 * std::max(gone, come) + 512) << "from rank " << from;
  }
  EXPECT_GE(sent[1], kSmall * sizeof(std::uint64_t)) << "what was asked for, or acknowledgements";
  EXPECT_TRUE(way.get || sent[0] >= kSmall * sizeof(std::uint64_t));
}

INSTANTIATE_TEST_SUITE_P(Ways, SmallBytesMoved,
                         ::testing::Values(SmallWay{"TcpPut", "tcp", false}, SmallWay{"TcpGet", "tcp", true},
                                           SmallWay{"ShmPut", "shm", false}, SmallWay{"ShmGet", "shm", true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BytesCounted, ARailThatCannotSeeAllSaysSo) {
  Settings settings = loopback_settings(1);
  const bool all = !on_verbs();
  run_ranks(2, settings, [&](World& world) { EXPECT_EQ(world.statistics().rails[0].sees_one_sided, all); });
  settings.driver = "ofi";
  if (!on_verbs())
    run_ranks(2, settings, [](World& world) { EXPECT_FALSE(world.statistics().rails[0].sees_one_sided); });
}

}  // namespace
}  // namespace railyard
