// Contexts on devices of the verbs double that have next to nothing (T7), and one queue pair that breaks under many
// channels (T9).
#include <gmock/gmock.h>

#include <cstdlib>

#include "contexts.hpp"
#include "doubles/verbs/verbs_double.hpp"

namespace railyard {
namespace {

using verbs_double::Kind;

class VerbsCapacity : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(network_.violations(), std::vector<std::string>());
    EXPECT_EQ(network_.alive(), 0u);
  }
  static Settings on(const char* devices, std::uint32_t shared_links) {
    Settings settings;
    settings.driver = "verbs";
    settings.interfaces = devices;
    settings.shared_memory = "off";
    settings.shared_links = shared_links;
    settings.workers = 1;
    settings.rails = static_cast<std::uint32_t>(1 + std::ranges::count(settings.interfaces, ','));
    return settings;
  }
  /// A message from the one end to the other.
  static bool carries(const ChannelPair& pair, std::uint32_t name, std::size_t bytes = 3000) {
    const auto message = pattern(bytes, name);
    std::vector<std::byte> target(bytes);
    const std::array slots{ReceiveSlot{target, 0}};
    Request* const receive = must(pair.in->receive(slots));
    Request* const send = must(pair.out->send(message, 0));
    return waited(*pair.out, send) && waited(*pair.in, receive) && target == message;
  }

  verbs_double::Network network_{{.devices = 3}};
};

TEST_F(VerbsCapacity, PrivateLinksBeyondTheDeviceAreAnErrorAndTheOpenOnesGoOn) {
  constexpr int kMost = 20;
  network_.options(0).limits.max_qp = kMost;
  const auto a = open_context(on("fake0", 0));
  const auto b = open_context(on("fake1", 0));
  ASSERT_TRUE(a && b);
  std::vector<ChannelPair> open;
  std::vector<std::string> errors;
  for (int i = 0; i < 64; ++i) {
    auto listener = b->listen();
    ASSERT_TRUE(listener);
    Handle handle = (*listener)->handle();
    ChannelPair pair;
    std::string error;
    const bool over = eventually([&] {
      if (!pair.out) {
        auto out = a->connect(handle, {});
        if (!out) {
          error = out.error().text();
          return true;
        }
        pair.out = std::move(*out);
      }
      if (!pair.in) {
        auto in = (*listener)->accept();
        if (!in) {
          error = in.error().text();
          return true;
        }
        pair.in = std::move(*in);
      }
      return pair.out && pair.in;
    });
    ASSERT_TRUE(over) << "neither a channel nor an error: " << i;
    if (error.empty()) {
      open.push_back(std::move(pair));
    } else {
      errors.push_back(error);
    }
    for (std::size_t one = 0; one < open.size(); one += 5)
      ASSERT_TRUE(carries(open[one], static_cast<std::uint32_t>(one))) << i;
  }
  EXPECT_EQ(open.size(), kMost - 1u);
  ASSERT_FALSE(errors.empty());
  EXPECT_THAT(errors.front(), ::testing::HasSubstr("queue pair"));
  EXPECT_THAT(errors.front(), ::testing::HasSubstr("RAILYARD_SHARED_LINKS"));
  for (std::size_t one = 0; one < open.size(); ++one) ASSERT_TRUE(carries(open[one], 7, 100'000));
  // Room again.
  open.resize(5);
  ASSERT_TRUE(eventually([&] { return network_.count(0, Kind::connected_pair).alive <= 5; }));
  const ChannelPair again = connect(*a, *b);
  ASSERT_TRUE(again.out && again.in);
  EXPECT_TRUE(carries(again, 1));
}

TEST_F(VerbsCapacity, ChannelsComeAndGoWithoutGrowth) {
  const char* const asked = std::getenv("TEST_LONG");
  const int cycles = asked != nullptr && asked[0] == '1' ? 2048 : 128;
  for (const std::uint32_t links : {0U, 2U}) {
    const auto a = open_context(on("fake0", links));
    const auto b = open_context(on("fake1", links));
    ASSERT_TRUE(a && b);
    for (int cycle = 0; cycle < cycles; ++cycle) {
      const ChannelPair there = connect(*a, *b);
      const ChannelPair back = connect(*b, *a);
      ASSERT_TRUE(there.out && there.in && back.out && back.in);
      ASSERT_TRUE(carries(there, static_cast<std::uint32_t>(cycle)));
      ASSERT_TRUE(carries(back, static_cast<std::uint32_t>(cycle), 100'000));
    }
    for (const std::size_t device : {0u, 1u}) {
      ASSERT_TRUE(eventually([&] { return network_.count(device, Kind::connected_pair).alive == 0; }));
      // A closed one stays a while for its last acknowledgement.
      EXPECT_LE(network_.count(device, Kind::connected_pair).peak, 64u);
      EXPECT_LE(network_.count(device, Kind::address_handle).peak, 64u);
      EXPECT_EQ(network_.count(device, Kind::datagram_pair).alive, 1u);
      EXPECT_EQ(network_.count(device, Kind::completion_queue).alive, 1u);
      EXPECT_LE(network_.count(device, Kind::region).alive, 16u);
    }
  }
}

TEST_F(VerbsCapacity, ShortQueuesUnderManySharersAreBackPressureOnly) {
  for (std::size_t device : {0u, 1u}) {
    network_.options(device).limits.max_qp_wr = 4;
    network_.options(device).limits.max_srq_wr = 16;
    network_.options(device).limits.max_cqe = 400;
    network_.options(device).limits.max_inline_data = 0;
  }
  const auto a = open_context(on("fake0", 1));
  const auto b = open_context(on("fake1", 1));
  ASSERT_TRUE(a && b);
  std::vector<ChannelPair> pairs;
  for (int i = 0; i < 8; ++i) pairs.push_back(connect(*a, *b));
  for (std::uint32_t round = 0; round < 40; ++round) {
    std::vector<Request*> sends;
    std::vector<Request*> receives;
    std::vector<std::vector<std::byte>> messages;
    std::vector<std::vector<std::byte>> targets(pairs.size() * 2);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      messages.push_back(pattern(i % 3 == 0 ? 20'000 : 200, round * 100 + static_cast<std::uint32_t>(i)));
      targets[i].resize(messages[i].size());
      const std::array slots{ReceiveSlot{targets[i], 0}};
      receives.push_back(must(pairs[i / 2].in->receive(slots)));
    }
    for (std::size_t i = 0; i < targets.size(); ++i) sends.push_back(must(pairs[i / 2].out->send(messages[i], 0)));
    for (std::size_t i = 0; i < targets.size(); ++i) {
      ASSERT_TRUE(waited(*pairs[i / 2].out, sends[i]) && waited(*pairs[i / 2].in, receives[i])) << round;
      ASSERT_EQ(targets[i], messages[i]);
    }
  }
  EXPECT_EQ(network_.count(0, Kind::connected_pair).alive, 1u);
  EXPECT_LE(network_.traffic(0).peak_send_queue, 4u);
}

TEST_F(VerbsCapacity, AQueuePairThatBreaksUnderManyChannelsIsMadeAgainAndNothingIsLost) {
  const auto a = open_context(on("fake0", 1));
  const auto b = open_context(on("fake1", 1));
  ASSERT_TRUE(a && b);
  std::vector<ChannelPair> pairs;
  for (int i = 0; i < 8; ++i) pairs.push_back(i % 2 == 0 ? connect(*a, *b) : connect(*b, *a));
  for (std::uint32_t round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      // Numbered from 0x100, CM messages have the first.
      if (i == 3)
        network_.break_pair(
            round % 2, 0x100 + static_cast<std::uint32_t>(network_.count(round % 2, Kind::connected_pair).created));
      ASSERT_TRUE(carries(pairs[i], round * 100 + static_cast<std::uint32_t>(i), 50'000)) << round << " " << i;
    }
  }
  EXPECT_TRUE(eventually([&] { return network_.count(Kind::connected_pair).alive == 2; }));
  EXPECT_GE(network_.count(Kind::connected_pair).created, 12u);
  pairs.clear();
  EXPECT_TRUE(nothing_left(*a, *b));
  EXPECT_TRUE(eventually([&] { return network_.count(Kind::connected_pair).alive == 0; }));
}

TEST_F(VerbsCapacity, WithItsOnlyDeviceDeadEveryChannelHearsOnceAndOthersGoOn) {
  Settings settings = on("fake0", 1);
  settings.peer_timeout_ms = 2000;
  const auto a = open_context(settings);
  settings.interfaces = "fake1";
  const auto b = open_context(settings);
  settings.interfaces = "fake2";
  const auto c = open_context(settings);
  ASSERT_TRUE(a && b && c);
  std::vector<ChannelPair> dying;
  for (int i = 0; i < 4; ++i) dying.push_back(connect(*a, *b));
  const ChannelPair other = connect(*c, *b);
  for (const ChannelPair& pair : dying) ASSERT_TRUE(carries(pair, 1));
  network_.kill(0);
  const auto message = pattern(100, 1);
  std::vector<std::byte> target(100);
  const std::array slots{ReceiveSlot{target, 0}};
  std::vector<Request*> receives;
  for (const ChannelPair& pair : dying) receives.push_back(must(pair.in->receive(slots)));
  for (std::size_t i = 0; i < dying.size(); ++i) {
    EXPECT_FALSE(dying[i].in->wait(receives[i], {}, Deadline::in(std::chrono::seconds(20))));
    // What fits into a buffer is sent as far as its owner is concerned, until the channel is known to be dead.
    std::string error;
    EXPECT_TRUE(eventually([&] {
      auto sent = dying[i].out->send(message, 0);
      const auto done = sent ? dying[i].out->wait(*sent, {}, Deadline::in(std::chrono::seconds(20)))
                             : Result<void>(std::move(sent.error()));
      if (!done) error = done.error().text();
      return !done;
    }));
    EXPECT_FALSE(error.empty());
  }
  EXPECT_TRUE(carries(other, 5));
}

}  // namespace
}  // namespace railyard
