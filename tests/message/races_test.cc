// T5: threads that connect, send and close at the same time, from both sides. Under ThreadSanitizer this is what it
// looks at.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "base/random.hpp"
#include "contexts.hpp"
#include "sanitized.hpp"

namespace railyard {
namespace {

#ifdef RAILYARD_SANITIZED
constexpr int kScale = 4;
#else
constexpr int kScale = 1;
#endif

/// One message from one end to the other.
void carry(Channel& from, Channel& to, std::size_t bytes, std::uint32_t seed) {
  const auto message = pattern(bytes, seed);
  std::vector<std::byte> target(bytes);
  const std::array slots{ReceiveSlot{target, 0}};
  Request* const receive = must(to.receive(slots));
  Request* const send = must(from.send(message, 0));
  EXPECT_TRUE(waited(to, receive) && waited(from, send));
  EXPECT_EQ(target, message);
}

void open_use_and_close(Context& a, Context& b, std::uint64_t seed, int times) {
  Random random(seed);
  for (int i = 0; i < times; ++i) {
    const bool forth = random.chance(0.5);
    ChannelPair pair = forth ? connect(a, b) : connect(b, a);
    if (!pair.out || !pair.in) return;
    for (std::uint64_t messages = random.below(4); messages > 0; --messages) {
      const std::size_t bytes = random.chance(0.7) ? random.below(5000) : random.below(200'000);
      carry(*pair.out, *pair.in, bytes, static_cast<std::uint32_t>(random.next()));
      carry(*pair.in, *pair.out, bytes / 2, static_cast<std::uint32_t>(random.next()));
    }
    if (random.chance(0.5)) pair.in.reset();
  }
}

class RacesT5 : public ::testing::TestWithParam<std::string> {
 protected:
  static Settings settings() {
    Settings settings = GetParam() == "Memory" ? over_memory() : over_network(2);
    settings.workers = GetParam() == "TwoWorkers" ? 2 : 1;
    return settings;
  }
};

TEST_P(RacesT5, ThreadsMayOpenUseAndCloseChannelsAtTheSameTime) {
  const auto a = open_context(settings());
  const auto b = open_context(settings());
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { open_use_and_close(*a, *b, i, 12 / kScale); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(nothing_left(*a, *b));
  EXPECT_EQ(a->statistics().joins_refused + b->statistics().joins_refused, 0U);
}

TEST_P(RacesT5, TwoThatConnectToEachOtherForTheFirstTimeAtOnceShareOneSetOfLinks) {
  for (int i = 0; i < 8 / kScale; ++i) {
    const auto a = open_context(settings());
    const auto b = open_context(settings());
    ChannelPair forth;
    ChannelPair back;
    std::thread other([&] { back = connect(*b, *a); });
    forth = connect(*a, *b);
    other.join();
    ASSERT_TRUE(forth.out && forth.in && back.out && back.in);
    carry(*forth.out, *forth.in, 10'000, 1);
    carry(*back.out, *back.in, 10'000, 2);
    const std::uint32_t most = a->settings().workers;
    EXPECT_TRUE(eventually([&] { return a->statistics().routes <= most && b->statistics().routes <= most; }))
        << a->statistics().routes << " and " << b->statistics().routes << " sets of links";
    EXPECT_EQ(a->statistics().private_routes + b->statistics().private_routes, 0U);
  }
}

TEST_P(RacesT5, MemoryMayBeRegisteredWhileMessagesMove) {
  const auto a = open_context(settings());
  const auto b = open_context(settings());
  ChannelPair pair = connect(*a, *b);
  ASSERT_TRUE(pair.out && pair.in);
  std::atomic<bool> stop{false};
  std::thread registrar([&] {
    std::vector<std::byte> memory(100'000);
    while (!stop.load()) {
      for (Channel* channel : {pair.out.get(), pair.in.get()}) {
        const auto registered = channel->register_memory(memory);
        EXPECT_TRUE(registered) << registered.error().text();
      }
    }
  });
  std::thread onlooker([&] {
    while (!stop.load()) {
      (void)pair.out->statistics();
      (void)a->statistics();
      std::this_thread::yield();
    }
  });
  for (std::uint32_t i = 0; i < 100 / kScale; ++i) carry(*pair.out, *pair.in, i % 2 == 0 ? 1000 : 150'000, i);
  stop.store(true);
  registrar.join();
  onlooker.join();
}

TEST_P(RacesT5, TheTwoEndsMayCloseAtTheSameTimeWithMessagesUnderWay) {
  const auto a = open_context(settings());
  const auto b = open_context(settings());
  for (std::uint32_t i = 0; i < 12 / kScale; ++i) {
    ChannelPair pair = connect(*a, *b);
    ASSERT_TRUE(pair.out && pair.in);
    const auto message = pattern(1 << 20U, i);
    std::vector<std::vector<std::byte>> targets(4, std::vector<std::byte>(message.size()));
    for (auto& target : targets) {
      const std::array slots{ReceiveSlot{target, 0}};
      must(pair.in->receive(slots));
      must(pair.out->send(message, 0));
    }
    std::thread other([&] { pair.in->close(); });
    pair.out->close();
    other.join();
    // What close has given back stays as it is.
    for (auto& target : targets) std::ranges::fill(target, std::byte{0x55});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const auto& target : targets) {
      ASSERT_TRUE(std::ranges::all_of(target, [](std::byte byte) { return byte == std::byte{0x55}; }));
    }
  }
  EXPECT_TRUE(nothing_left(*a, *b));
}

/// Whoever has what it wanted closes at once; that must not turn into an error what is done at the other end.
TEST_P(RacesT5, ARequestThatIsDoneIsNoErrorWhenThePeerClosesAtThatMoment) {
  const auto a = open_context(settings());
  const auto b = open_context(settings());
  std::atomic<int> errors{0};
  const auto once = [&](std::uint32_t seed) {
    ChannelPair pair = connect(*a, *b);
    ASSERT_TRUE(pair.out && pair.in);
    const auto message = pattern(seed % 2 == 0 ? 500 : 50'000, seed);
    std::vector<std::byte> target(message.size());
    const std::array slots{ReceiveSlot{target, 0}};
    Request* const receive = must(pair.in->receive(slots));
    Request* const send = must(pair.out->send(message, 0));
    std::thread other([&] {
      if (!waited(*pair.out, send)) ++errors;
      pair.out->close();
    });
    for (bool over = false; !over;) {
      const auto done = pair.in->test(receive);
      if (!done) ++errors;
      over = !done || *done;
    }
    other.join();
    EXPECT_EQ(target, message);
  };
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (std::uint32_t round = 0; round < 40U / kScale; ++round) once(i * 1000 + round);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors.load(), 0);
}

TEST(RacesT5Context, MayEndWithChannelsOpenAndItsPeerIsTold) {
  auto a = open_context(over_network(1));
  const auto b = open_context(over_network(1));
  ChannelPair pair = connect(*a, *b);
  ASSERT_TRUE(pair.out && pair.in);
  carry(*pair.out, *pair.in, 5000, 1);
  std::vector<std::byte> target(100);
  const std::array slots{ReceiveSlot{target, 0}};
  Request* const receive = must(pair.in->receive(slots));
  pair.out->close();
  a.reset();
  const auto done = pair.in->wait(receive, {}, Deadline::in(test_patience() * std::chrono::seconds(20)));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().status(), Status::peer_lost) << done.error().text();
}

INSTANTIATE_TEST_SUITE_P(Rails, RacesT5, ::testing::Values("Memory", "Tcp2", "TwoWorkers"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace railyard
