// What a small message costs: frames, acknowledgements. On simulated rails, where nothing depends on who is how fast.
#include <gtest/gtest.h>

#include <array>

#include "contexts.hpp"
#include "yard.hpp"

namespace railyard::message {
namespace {

bool done(ChannelState& channel, Request* request) {
  const auto tested = channel.test(request, {});
  EXPECT_TRUE(tested) << tested.error().text();
  return tested && *tested;
}

struct Cost {
  std::uint64_t frames = 0;
  std::uint64_t acknowledgements = 0;
};

Cost cost_of(Yard& yard, std::size_t process) {
  const WorldStatistics statistics = yard.at(process).engine().statistics();
  return {statistics.rails.front().frames_sent, statistics.acknowledgements_sent};
}

/// Steps of a collective: a message each way at the same time, each direction on a channel of its own.
Cost cost_of_steps(std::size_t bytes, std::uint32_t steps) {
  const std::array both{quiet_settings(), quiet_settings()};
  const std::array<std::uint32_t, 2> rails{1, 1};
  Yard yard(orderly(rails), both);
  const std::array ends{yard.join(0, 1), yard.join(1, 0)};
  if (!ends[0] || !ends[1]) return {};
  std::array<std::vector<std::byte>, 2> targets{std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
  std::array<std::unique_ptr<Memory>, 2> memory;
  for (std::size_t i = 0; i < 2; ++i) memory[i] = std::move(ends[i].in->register_memory(targets[i])).value();
  Cost before;
  for (std::uint32_t step = 0; step <= steps; ++step) {
    if (step == 1) before = cost_of(yard, 0);  // what is announced with the first one is not counted
    std::array<std::vector<std::byte>, 2> messages{pattern(bytes, step), pattern(bytes, step + 1)};
    std::array<Request*, 2> receives{};
    for (std::size_t i = 0; i < 2; ++i) {
      const std::array slots{ReceiveSlot{targets[i], 0, memory[i].get()}};
      receives[i] = must(ends[i].in->receive(slots, false));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      Request* const send = must(ends[i].out->send(messages[i], 0, nullptr));
      EXPECT_TRUE(yard.until([&] { return done(*ends[i].out, send); }));
    }
    const auto arrived = [&] {
      for (std::size_t i = 0; i < 2; ++i) {
        if (receives[i] != nullptr && done(*ends[i].in, receives[i])) receives[i] = nullptr;
      }
      return receives[0] == nullptr && receives[1] == nullptr;
    };
    EXPECT_TRUE(yard.until(arrived));
    EXPECT_EQ(targets, messages);
  }
  const Cost after = cost_of(yard, 0);
  for (std::size_t i = 0; i < 2; ++i) yard.act_as(1 - i, [&] { memory[i].reset(); });
  return {after.frames - before.frames, after.acknowledgements - before.acknowledgements};
}

constexpr std::uint32_t kSteps = 64;

TEST(FrameCount, NobodyWaitsForTheAcknowledgementsOfSmallMessages) {
  const Cost cost = cost_of_steps(8, kSteps);
  EXPECT_GE(cost.frames, kSteps);
  EXPECT_LE(cost.frames, 2 * kSteps) << "a message, and the receive of another";
  EXPECT_LE(cost.acknowledgements, kSteps / 8) << "they ride on what says that there is a receive";
}

TEST(FrameCount, MessagesOfSeveralFramesAreAcknowledgedAtOnce) {
  const Cost cost = cost_of_steps(8'000, kSteps);
  EXPECT_GE(cost.acknowledgements, kSteps / 2) << "their sender counts how many are unacknowledged";
}

TEST(FrameCount, BothEndsSendFramesOverTheSameLinkAndChunksOverTwo) {
  const std::array both{quiet_settings(), quiet_settings()};
  const std::array<std::uint32_t, 2> rails{4, 4};
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Yard yard(orderly(rails, seed), both);
    const Ends ends = yard.join(0, 1);
    ASSERT_TRUE(ends);
    EXPECT_EQ(ends.out->flow()->first_link, ends.in->flow()->first_link);
    EXPECT_NE(ends.out->flow()->small_chunks, ends.in->flow()->small_chunks);
  }
}

}  // namespace
}  // namespace railyard::message
