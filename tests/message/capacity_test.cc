// T7: little room everywhere is back-pressure and nothing else. And how much a receiver keeps for a sender that is
// ahead.
#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include "contexts.hpp"
#include "message/wire.hpp"
#include "sanitized.hpp"

namespace railyard {
namespace {

struct Room {
  std::string name;
  Settings settings;
};

Settings tiny(Settings settings) {
  settings.window = 1;  // the least there can be is taken
  settings.batch = 1;
  settings.chunk_min = settings.chunk_max = 4096;
  return settings;
}

class CapacityT7 : public ::testing::TestWithParam<Room> {};

TEST_P(CapacityT7, SharersInLockstepSeeNothingButBackPressure) {
#ifdef RAILYARD_SANITIZED
  constexpr std::size_t kRounds = 40;
#else
  constexpr std::size_t kRounds = 2 * Channel::kMostRequests + 8;
#endif
  constexpr std::size_t kChannels = 8;
  const auto a = open_context(GetParam().settings);
  const auto b = open_context(GetParam().settings);
  std::vector<ChannelPair> pairs;
  for (std::size_t i = 0; i < kChannels; ++i) {
    pairs.push_back(connect(*a, *b));
    ASSERT_TRUE(pairs.back().out && pairs.back().in);
  }
  const std::array sizes{std::size_t{8}, std::size_t{3000}, std::size_t{20'000}};
  std::vector<std::vector<std::byte>> targets(kChannels, std::vector<std::byte>(20'000));
  for (std::size_t round = 0; round < kRounds; ++round) {
    std::vector<Request*> receives;
    std::vector<Request*> sends;
    std::vector<std::vector<std::byte>> messages;
    for (std::size_t i = 0; i < kChannels; ++i) {
      messages.push_back(pattern(sizes[(round + i) % sizes.size()], static_cast<std::uint32_t>(round * kChannels + i)));
      const std::array slots{ReceiveSlot{targets[i], 0}};
      receives.push_back(must(pairs[i].in->receive(slots)));
      sends.push_back(must(pairs[i].out->send(messages.back(), 0)));
    }
    for (std::size_t i = 0; i < kChannels; ++i) {
      std::array<std::uint64_t, 1> size{};
      ASSERT_TRUE(waited(*pairs[i].in, receives[i], size)) << "round " << round;
      ASSERT_EQ(size[0], messages[i].size());
      ASSERT_TRUE(same_bytes(targets[i].data(), messages[i].data(), size[0])) << "round " << round;
      ASSERT_TRUE(waited(*pairs[i].out, sends[i]));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Rails, CapacityT7,
                         ::testing::Values(Room{"Memory", tiny(over_memory())}, Room{"Tcp2", tiny(over_network(2))},
                                           Room{"Strict", tiny(over_strict_provider())}),
                         [](const auto& info) { return info.param.name; });

class Requests : public ::testing::Test {
 protected:
  void open(std::uint32_t eager_bytes) {
    Settings settings = over_network(1);
    settings.eager_bytes = eager_bytes;
    a_ = open_context(settings);
    b_ = open_context(settings);
    pair_ = connect(*a_, *b_);
    ASSERT_TRUE(pair_.out && pair_.in);
  }
  std::unique_ptr<Context> a_;
  std::unique_ptr<Context> b_;
  ChannelPair pair_;
};

TEST_F(Requests, T7AreAsManyAsPromisedEachWayAndThenNull) {
  open(0);
  const auto message = pattern(64, 1);
  std::vector<Request*> sends;
  for (std::size_t i = 0; i < Channel::kMostRequests; ++i) {
    sends.push_back(must(pair_.out->send(message, 0)));
    ASSERT_NE(sends.back(), nullptr) << i;
  }
  EXPECT_EQ(must(pair_.out->send(message, 0)), nullptr);
  std::vector<std::vector<std::byte>> targets(Channel::kMostRequests, std::vector<std::byte>(64));
  std::vector<Request*> receives;
  for (auto& target : targets) {
    const std::array slots{ReceiveSlot{target, 0}};
    receives.push_back(must(pair_.in->receive(slots)));
    ASSERT_NE(receives.back(), nullptr);
  }
  std::vector<std::byte> one_more(64);
  const std::array slots{ReceiveSlot{one_more, 0}};
  // Done is not given back: a request is the user's until `test` has said so.
  EXPECT_EQ(must(pair_.in->receive(slots)), nullptr);
  for (std::size_t i = 0; i < Channel::kMostRequests; ++i) {
    ASSERT_TRUE(waited(*pair_.in, receives[i]));
    ASSERT_TRUE(waited(*pair_.out, sends[i]));
    ASSERT_EQ(targets[i], message);
  }
  Request* const again = must(pair_.out->send(message, 0));
  ASSERT_NE(again, nullptr) << "a request that was done is free again";
  ASSERT_TRUE(eventually([&] { return must(pair_.in->receive(slots)) != nullptr; }));
  ASSERT_TRUE(waited(*pair_.out, again));
}

TEST_F(Requests, AReceiveOfNoOrTooManyMessagesIsRefusedInWords) {
  open(4096);
  std::vector<std::byte> target(64);
  const std::vector<ReceiveSlot> nine(Channel::kMostSlots + 1, ReceiveSlot{target, 0});
  for (const std::size_t count : {std::size_t{0}, nine.size()}) {
    const auto request = pair_.in->receive(std::span(nine).first(count));
    ASSERT_FALSE(request);
    EXPECT_NE(request.error().text().find("1 to 8"), std::string::npos) << request.error().text();
  }
}

TEST_F(Requests, ASenderThatIsAheadStopsAtTheBoundAndEverythingArrivesInTheEnd) {
  open(64 * 1024);
  for (const std::size_t bytes : {std::size_t{64 * 1024}, std::size_t{100}, std::size_t{0}}) {
    constexpr std::size_t kMessages = 200;
    std::vector<std::vector<std::byte>> messages;
    std::vector<Request*> sends;
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      messages.push_back(pattern(bytes, i));
      sends.push_back(must(pair_.out->send(messages.back(), 0)));
      ASSERT_NE(sends.back(), nullptr);
    }
    std::vector<bool> done(kMessages);
    const auto count_done = [&] {
      for (std::size_t i = 0; i < kMessages; ++i) {
        if (!done[i]) done[i] = *pair_.out->test(sends[i]);
      }
      return static_cast<std::size_t>(std::ranges::count(done, true));
    };
    std::size_t ahead = 0;
    for (int i = 0; i < 300; ++i) {
      ahead = count_done();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GT(ahead, 0U) << "small messages do go ahead";
    EXPECT_LE(ahead, message::kMostUnexpected);
    EXPECT_LE(ahead * bytes, message::kMostUnexpectedBytes);
    for (std::size_t i = 0; i < kMessages; ++i) {
      std::vector<std::byte> target(bytes);
      const std::array slots{ReceiveSlot{target, 0}};
      std::array<std::uint64_t, 1> size{};
      ASSERT_TRUE(waited(*pair_.in, must(pair_.in->receive(slots)), size));
      ASSERT_EQ(size[0], bytes);
      ASSERT_EQ(target, messages[i]) << i;
    }
    for (std::size_t i = 0; i < kMessages; ++i) {
      if (done[i]) continue;
      ASSERT_TRUE(waited(*pair_.out, sends[i]));
    }
  }
}

}  // namespace
}  // namespace railyard
