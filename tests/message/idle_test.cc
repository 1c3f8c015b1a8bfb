/// Contexts that have nothing to do.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "contexts.hpp"
#include "cpu_time.hpp"
#include "sanitized.hpp"

namespace railyard {
namespace {

void exchange_one(ChannelPair& pair) {
  const std::array<std::byte, 64> message{std::byte{5}};
  std::array<std::byte, 64> place{};
  const ReceiveSlot slot{place, 1};
  auto receive = pair.in->receive({&slot, 1});
  ASSERT_TRUE(receive) << receive.error().text();
  auto send = pair.out->send(message, 1);
  ASSERT_TRUE(send) << send.error().text();
  const auto received = pair.in->wait(*receive);
  EXPECT_TRUE(received.ok()) << received.error().text();
  const auto sent = pair.out->wait(*send);
  EXPECT_TRUE(sent.ok()) << sent.error().text();
  EXPECT_EQ(place, message);
}

class IdleContexts : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Rails, IdleContexts, ::testing::Values("memory", "network"),
                         [](const auto& info) { return std::string(info.param); });

/// Of a core, for two contexts.
#ifdef RAILYARD_SANITIZED
constexpr double kMostShare = 0.1;
#else
constexpr double kMostShare = 0.02;
#endif

TEST_P(IdleContexts, Sleep) {
  const Settings settings = std::string(GetParam()) == "memory" ? over_memory() : over_network(1);
  auto one = open_context(settings);
  auto other = open_context(settings);
  ASSERT_TRUE(one && other);
  auto listener = one->listen();
  ASSERT_TRUE(listener) << listener.error().text();
  ChannelPair pair = connect(*one, *other);
  ASSERT_TRUE(pair.out && pair.in);
  exchange_one(pair);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const CpuTime cpu;
  std::this_thread::sleep_for(std::chrono::seconds(3));
  EXPECT_LT(cpu.share(), kMostShare) << "of two contexts";
  exchange_one(pair);
}

}  // namespace
}  // namespace railyard
