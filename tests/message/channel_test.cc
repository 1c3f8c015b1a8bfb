/// Channels between two contexts: what the user of one is promised.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "contexts.hpp"

namespace railyard {
namespace {

struct Bed {
  std::string name;
  Settings settings;
};

Settings without_eager(Settings settings) {
  settings.eager_bytes = 0;
  return settings;
}
/// Little room everywhere: there is back-pressure all the time.
Settings narrow(Settings settings) {
  settings.window = 16;
  settings.batch = 1;
  return settings;
}

class ChannelTest : public ::testing::TestWithParam<Bed> {
 protected:
  void SetUp() override {
    a_ = open_context(GetParam().settings);
    b_ = open_context(GetParam().settings);
    ASSERT_TRUE(a_ && b_);
    pair_ = connect(*a_, *b_);
    ASSERT_TRUE(pair_.out && pair_.in);
  }
  void send_and_check(std::size_t bytes, std::size_t room, std::uint32_t seed) {
    const auto message = pattern(bytes, seed);
    std::vector<std::byte> target(room, std::byte{0xee});
    const std::array slots{ReceiveSlot{target, 7}};
    Request* const receive = must(pair_.in->receive(slots));
    Request* const send = must(pair_.out->send(message, 7));
    std::array<std::uint64_t, 1> size{};
    ASSERT_TRUE(waited(*pair_.in, receive, size));
    EXPECT_EQ(size[0], bytes);
    EXPECT_TRUE(same_bytes(target.data(), message.data(), bytes)) << bytes << " bytes";
    for (std::size_t i = bytes; i < room; ++i) ASSERT_EQ(target[i], std::byte{0xee});
    ASSERT_TRUE(waited(*pair_.out, send, size));
    EXPECT_EQ(size[0], bytes);
  }

  std::unique_ptr<Context> a_;
  std::unique_ptr<Context> b_;
  ChannelPair pair_;
};

TEST_P(ChannelTest, MessagesOfEverySizeArriveWhole) {
  std::uint32_t seed = 0;
  for (const int size :
       {0,    1,    7,    8,     63,    64,      65,      1000,    4000,    4023,    4024,          4025,
        4096, 4097, 8192, 65535, 65536, 100'000, 262'143, 262'144, 262'145, 1 << 20, (1 << 20) + 1, 5'000'001}) {
    const auto bytes = static_cast<std::size_t>(size);
    send_and_check(bytes, bytes, ++seed);
    send_and_check(bytes, bytes + 100, ++seed);
  }
}

TEST_P(ChannelTest, ManyMessagesComeInTheOrderTheyWereSent) {
  constexpr std::size_t kCount = 3000;
  std::vector<std::vector<std::byte>> targets(32, std::vector<std::byte>(20'000));
  std::vector<std::vector<std::byte>> messages;
  const auto size_of = [](std::size_t i) { return (i * 7919) % 20'000; };
  std::vector<std::pair<Request*, std::size_t>> receives;
  std::vector<std::pair<Request*, std::size_t>> sends;
  std::vector<std::vector<std::byte>> sources(32);
  std::size_t posted = 0;
  std::size_t sent = 0;
  std::size_t received = 0;
  std::size_t finished = 0;
  while (received < kCount || finished < kCount) {
    if (posted < kCount && posted - received < 32) {
      const std::array slots{ReceiveSlot{targets[posted % 32], 0}};
      if (Request* request = must(pair_.in->receive(slots))) receives.emplace_back(request, posted++);
    }
    if (sent < kCount && sent - finished < 32) {
      sources[sent % 32] = pattern(size_of(sent), static_cast<std::uint32_t>(sent));
      if (Request* request = must(pair_.out->send(sources[sent % 32], 0))) sends.emplace_back(request, sent++);
    }
    std::array<std::uint64_t, 1> size{};
    if (!sends.empty() && *pair_.out->test(sends.front().first)) {
      sends.erase(sends.begin());
      ++finished;
    }
    if (!receives.empty() && *pair_.in->test(receives.front().first, size)) {
      const std::size_t i = receives.front().second;
      receives.erase(receives.begin());
      ++received;
      ASSERT_EQ(size[0], size_of(i));
      const auto expected = pattern(size_of(i), static_cast<std::uint32_t>(i));
      ASSERT_TRUE(same_bytes(targets[i % 32].data(), expected.data(), expected.size())) << "message " << i;
    }
  }
}

TEST_P(ChannelTest, SmallMessagesMayComeBeforeTheirReceive) {
  std::vector<std::vector<std::byte>> messages;
  for (std::uint32_t i = 0; i < 20; ++i) messages.push_back(pattern(i * 100, i));
  std::vector<Request*> sends;
  for (const auto& message : messages) sends.push_back(must(pair_.out->send(message, 0)));
  if (GetParam().settings.eager_bytes != 0) {
    for (Request* send : sends) ASSERT_TRUE(waited(*pair_.out, send));
  }
  for (std::uint32_t i = 0; i < 20; ++i) {
    std::vector<std::byte> target(2000);
    const std::array slots{ReceiveSlot{target, 0}};
    std::array<std::uint64_t, 1> size{};
    ASSERT_TRUE(waited(*pair_.in, must(pair_.in->receive(slots)), size));
    ASSERT_EQ(size[0], i * 100);
    ASSERT_TRUE(same_bytes(target.data(), messages[i].data(), i * 100));
  }
  if (GetParam().settings.eager_bytes == 0) {
    for (Request* send : sends) ASSERT_TRUE(waited(*pair_.out, send));
  }
  EXPECT_EQ(pair_.in->statistics().unexpected > 0, GetParam().settings.eager_bytes > 0);
}

TEST_P(ChannelTest, BothEndsMaySendAtOnce) {
  const auto one = pattern(300'000, 1);
  const auto two = pattern(400'000, 2);
  std::vector<std::byte> target_one(300'000);
  std::vector<std::byte> target_two(400'000);
  const std::array slots_one{ReceiveSlot{target_one, 0}};
  const std::array slots_two{ReceiveSlot{target_two, 0}};
  Request* const s1 = must(pair_.out->send(one, 0));
  Request* const s2 = must(pair_.in->send(two, 0));
  Request* const r1 = must(pair_.in->receive(slots_one));
  Request* const r2 = must(pair_.out->receive(slots_two));
  ASSERT_TRUE(waited(*pair_.in, r1) && waited(*pair_.out, r2) && waited(*pair_.out, s1) && waited(*pair_.in, s2));
  EXPECT_EQ(target_one, one);
  EXPECT_EQ(target_two, two);
}

TEST_P(ChannelTest, AGroupedReceiveTakesItsMessagesByTag) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{100'000}}) {
    std::array<std::vector<std::byte>, 4> targets;
    std::vector<ReceiveSlot> slots;
    for (int i = 0; i < 4; ++i) {
      targets[static_cast<std::size_t>(i)].resize(bytes + 10);
      slots.push_back({targets[static_cast<std::size_t>(i)], 10 + i});
    }
    std::array<std::vector<std::byte>, 4> messages;
    std::vector<Request*> sends;
    for (const int tag : {12, 10, 13, 11}) {
      auto& message = messages[static_cast<std::size_t>(tag - 10)];
      message = pattern(bytes + static_cast<std::size_t>(tag - 10), static_cast<std::uint32_t>(tag));
      sends.push_back(must(pair_.out->send(message, tag)));
    }
    Request* const receive = must(pair_.in->receive(slots));
    std::array<std::uint64_t, 4> sizes{};
    ASSERT_TRUE(waited(*pair_.in, receive, sizes));
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(sizes[i], bytes + i);
      EXPECT_TRUE(same_bytes(targets[i].data(), messages[i].data(), sizes[i]));
    }
    for (Request* send : sends) ASSERT_TRUE(waited(*pair_.out, send));
  }
}

TEST_P(ChannelTest, AMessageThatDoesNotFitIsAnErrorAtBothEndsThatNamesBothSizes) {
  const auto message = pattern(100'000, 1);
  std::vector<std::byte> target(50'000);
  const std::array slots{ReceiveSlot{target, 0}};
  Request* const receive = must(pair_.in->receive(slots));
  Request* const send = must(pair_.out->send(message, 0));
  for (auto [channel, request] : {std::pair{pair_.in.get(), receive}, std::pair{pair_.out.get(), send}}) {
    const auto done = channel->wait(request, {}, Deadline::in(test_patience() * std::chrono::seconds(30)));
    ASSERT_FALSE(done);
    EXPECT_NE(done.error().text().find("100000"), std::string::npos) << done.error().text();
    EXPECT_NE(done.error().text().find("50000"), std::string::npos) << done.error().text();
  }
}

TEST_P(ChannelTest, WhoeverWaitsOnAChannelThatThePeerClosedIsTold) {
  std::vector<std::byte> target(100);
  const std::array slots{ReceiveSlot{target, 0}};
  Request* const receive = must(pair_.in->receive(slots));
  pair_.out.reset();
  const auto done = pair_.in->wait(receive, {}, Deadline::in(test_patience() * std::chrono::seconds(30)));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().status(), Status::peer_lost) << done.error().text();
}

TEST_P(ChannelTest, WhatWasSentIsReceivedAfterItsSenderHasGone) {
  if (GetParam().settings.eager_bytes == 0) GTEST_SKIP() << "a send is done when its receive is";
  constexpr std::uint32_t kCount = 20;
  std::vector<std::vector<std::byte>> messages;
  for (std::uint32_t i = 0; i < kCount; ++i) messages.push_back(pattern(512, i));
  std::vector<Request*> sends;
  for (const auto& message : messages) sends.push_back(must(pair_.out->send(message, 0)));
  for (Request* send : sends) ASSERT_TRUE(waited(*pair_.out, send));
  pair_.out.reset();
  a_.reset();
  std::vector<std::byte> target(1000);
  const std::array slots{ReceiveSlot{target, 0}};
  for (std::uint32_t i = 0; i < kCount; ++i) {
    std::array<std::uint64_t, 1> size{};
    ASSERT_TRUE(waited(*pair_.in, must(pair_.in->receive(slots)), size)) << "message " << i;
    ASSERT_EQ(size[0], 512U);
    ASSERT_TRUE(same_bytes(target.data(), messages[i].data(), 512)) << "message " << i;
  }
  const auto registered = pair_.in->register_memory(target);
  EXPECT_TRUE(registered) << registered.error().text();
  const auto more = pair_.in->receive(slots);
  ASSERT_FALSE(more) << "there is nobody left to receive from";
  EXPECT_EQ(more.error().status(), Status::peer_lost) << more.error().text();
  EXPECT_EQ(pair_.in->send(messages[0], 0).status(), Status::peer_lost);
}

TEST_P(ChannelTest, MemoryThatIsRegisteredForSendsIsSentFromAndNothingIsReceivedIntoIt) {
  auto message = pattern(1 << 20U, 1);
  const auto source = pair_.out->register_memory(message, {}, MemoryUse::sends);
  ASSERT_TRUE(source) << source.error().text();
  std::vector<std::byte> target(message.size());
  const std::array into_source{ReceiveSlot{message, 0, source->get()}};
  const auto refused = pair_.out->receive(into_source);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status(), Status::invalid);
  const std::array slots{ReceiveSlot{target, 0}};
  Request* const receive = must(pair_.in->receive(slots));
  Request* const send = must(pair_.out->send(message, 0, source->get()));
  ASSERT_TRUE(waited(*pair_.in, receive));
  ASSERT_TRUE(waited(*pair_.out, send));
  EXPECT_TRUE(same_bytes(target.data(), message.data(), message.size()));
}

TEST_P(ChannelTest, DeregisteringMemoryUnderAReceiveEndsTheChannelAndNothingLandsThereAnyMore) {
  const auto message = pattern(1 << 20U, 1);
  std::vector<std::byte> target(message.size());
  auto registered = pair_.in->register_memory(target);
  ASSERT_TRUE(registered);
  const std::array slots{ReceiveSlot{target, 0, registered->get()}};
  Request* const receive = must(pair_.in->receive(slots));
  for (int i = 0; i < 100; ++i) (void)pair_.in->test(receive);
  registered->reset();
  std::ranges::fill(target, std::byte{0x5a});
  const auto sent = pair_.out->send(message, 0);
  if (sent) {
    const auto done = pair_.out->wait(*sent, {}, Deadline::in(test_patience() * std::chrono::seconds(30)));
    EXPECT_EQ(done.status(), Status::peer_lost);
  }
  const auto done = pair_.in->wait(receive, {}, Deadline::in(test_patience() * std::chrono::seconds(30)));
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().text().find("deregistered"), std::string::npos) << done.error().text();
  EXPECT_TRUE(std::ranges::all_of(target, [](std::byte byte) { return byte == std::byte{0x5a}; }));
}

TEST_P(ChannelTest, NothingIsLeftWhenEverythingIsClosed) {
  pair_.out.reset();
  pair_.in.reset();
  EXPECT_TRUE(nothing_left(*a_, *b_));
  EXPECT_EQ(a_->statistics().routes, 0U);
  EXPECT_EQ(b_->statistics().routes, 0U);
  EXPECT_EQ(a_->statistics().channels, 0U);
  EXPECT_EQ(b_->statistics().channels, 0U);
}

INSTANTIATE_TEST_SUITE_P(Rails, ChannelTest,
                         ::testing::Values(Bed{"Memory", over_memory()}, Bed{"Tcp1", over_network(1)},
                                           Bed{"Tcp3", over_network(3)},
                                           Bed{"EagerOff", without_eager(over_network(2))},
                                           Bed{"EagerOffMemory", without_eager(over_memory())},
                                           Bed{"Narrow", narrow(over_network(2))},
                                           Bed{"Strict", over_strict_provider()}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace railyard
