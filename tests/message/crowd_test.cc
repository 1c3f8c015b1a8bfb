/// More threads than processors, all spinning: every one of them is away for many times a link's round trip. Nothing is
/// wrong with any link, and none may be given up.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "contexts.hpp"
#include "sanitized.hpp"

namespace railyard {
namespace {

#ifdef RAILYARD_SANITIZED
constexpr int kCrowdRounds = 1;
#else
constexpr int kCrowdRounds = 6;
#endif
constexpr int kCrowdPairs = 4;
constexpr int kCrowdMessages = 4;

/// The threads made from here on, those of contexts too, share one processor.
class OneProcessor {
 public:
  OneProcessor() {
    CPU_ZERO(&before_);
    (void)::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    int first = 0;
    while (first < CPU_SETSIZE && !CPU_ISSET(first, &before_)) ++first;
    CPU_SET(first, &one);
    (void)::sched_setaffinity(0, sizeof one, &one);
  }
  ~OneProcessor() { (void)::sched_setaffinity(0, sizeof before_, &before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t before_;
};

bool spun(Channel& channel, Request* request) {
  for (;;) {
    const auto done = channel.test(request);
    EXPECT_TRUE(done) << done.error().text();
    if (!done || *done) return static_cast<bool>(done);
  }
}

/// Connects to the listener again and again; each channel carries some messages there and back.
void call_again_and_again(Context& context, const Handle& to, std::size_t bytes, std::uint32_t seed) {
  std::vector<std::byte> back(bytes);
  const std::array slots{ReceiveSlot{back, 0}};
  for (std::uint32_t round = 0; round < kCrowdRounds; ++round) {
    Handle handle = to;
    std::unique_ptr<Channel> channel;
    while (!channel) {
      auto made = context.connect(handle);
      ASSERT_TRUE(made) << made.error().text();
      channel = std::move(*made);
    }
    for (std::uint32_t i = 0; i < kCrowdMessages; ++i) {
      const auto message = pattern(bytes, seed + 100 * round + i);
      Request* const receive = must(channel->receive(slots));
      Request* const send = must(channel->send(message, 0));
      ASSERT_TRUE(spun(*channel, send) && spun(*channel, receive));
      ASSERT_EQ(back, message);
    }
  }
}

void echo(Channel& channel, std::size_t bytes) {
  std::vector<std::byte> memory(bytes);
  const std::array slots{ReceiveSlot{memory, 0}};
  for (int i = 0; i < kCrowdMessages; ++i) {
    ASSERT_TRUE(spun(channel, must(channel.receive(slots))));
    ASSERT_TRUE(spun(channel, must(channel.send(memory, 0))));
  }
}

class CrowdT5 : public ::testing::TestWithParam<std::string> {};

TEST_P(CrowdT5, EightSpinningThreadsOnOneProcessorCostNoLink) {
  const OneProcessor one;
  const bool memory = GetParam() == "Memory";
  const std::size_t bytes = memory ? 100'000 : 1'000'000;
  const auto a = open_context(memory ? over_memory() : over_network(4));
  const auto b = open_context(memory ? over_memory() : over_network(4));
  const auto listener = b->listen();
  ASSERT_TRUE(listener);
  std::mutex accepting;
  std::atomic<int> expected{kCrowdPairs * kCrowdRounds};
  const auto answer = [&] {
    while (expected.load() > 0) {
      std::unique_ptr<Channel> channel;
      {
        const std::lock_guard lock(accepting);
        auto made = (*listener)->accept();
        ASSERT_TRUE(made) << made.error().text();
        channel = std::move(*made);
        if (channel) --expected;
      }
      if (channel) echo(*channel, bytes);
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kCrowdPairs; ++i) {
    threads.emplace_back([&, i] { call_again_and_again(*a, (*listener)->handle(), bytes, 10'000 * i); });
    threads.emplace_back(answer);
  }
  for (std::thread& thread : threads) thread.join();
  for (const Context* context : {a.get(), b.get()}) {
    for (const WorldStatistics& engine : context->statistics().engines) EXPECT_EQ(engine.links_lost, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Rails, CrowdT5, ::testing::Values("Memory", "Tcp4"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace railyard
