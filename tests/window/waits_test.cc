/// Waits and barriers when ranks come late or never.
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <thread>

#include "process_world.hpp"
#include "railyard/window.hpp"
#include "stopped.hpp"

namespace railyard {
namespace {

using std::chrono::milliseconds;

Settings over_rails(int /*rank*/) { return loopback_settings(1); }
Settings mapped(int /*rank*/) { return direct_settings(); }

struct WaitBed {
  const char* name;
  Settings (*settings)(int);
};
class WaitsTest : public ::testing::TestWithParam<WaitBed> {
 protected:
  std::function<Settings(int)> settings() const { return GetParam().settings; }
};
INSTANTIATE_TEST_SUITE_P(Rails, WaitsTest, ::testing::Values(WaitBed{"rails", over_rails}, WaitBed{"mapped", mapped}),
                         [](const auto& info) { return std::string(info.param.name); });

/// Rank 0 runs out of time in its first barrier, again and again, until rank 1 comes. If every try counted as an
/// arrival, rank 1's next barriers would not wait for rank 0.
TEST_P(WaitsTest, ABarrierThatRanOutOfTimeGoesOnWhereItWas) {
  run_processes(2, settings(), [](World& world, ProcessRendezvous& rendezvous) {
    auto window = must(Window::allocate(world, 64));
    if (world.rank() == 0) {
      for (int i = 0; i < 3; ++i) EXPECT_EQ(window.barrier(Deadline::in(milliseconds(10))).status(), Status::timeout);
      rendezvous.notes[0] = 1;
      must(window.barrier());
      for (std::uint64_t round = 2; round <= 5; ++round) {
        std::this_thread::sleep_for(milliseconds(20));
        rendezvous.notes[0] = round;
        must(window.barrier());
      }
    } else {
      while (rendezvous.notes[0] == 0) std::this_thread::sleep_for(milliseconds(1));
      must(window.barrier());
      for (std::uint64_t round = 2; round <= 5; ++round) {
        must(window.barrier());
        EXPECT_GE(rendezvous.notes[0], round) << "this rank left a barrier that the other had not entered";
      }
    }
    must(window.close());
  });
}

TEST_P(WaitsTest, AWaitEndsWhenNobodyIsLeftWhoCouldSignal) {
  run_processes(2, settings(),
                [](World& world, ProcessRendezvous&) {
                  auto window = must(Window::allocate(world, 64));
                  must(window.barrier());
                  if (world.rank() == 1) ::raise(SIGKILL);
                  const auto waited =
                      window.wait_signal(3, Comparison::greater_equal, 1, Deadline::in(std::chrono::minutes(4)));
                  ASSERT_FALSE(waited);
                  EXPECT_EQ(waited.status(), Status::peer_lost) << waited.error().text();
                  EXPECT_NE(waited.error().text().find("signal 3"), std::string::npos) << waited.error().text();
                },
                {1});
}

TEST_P(WaitsTest, AWaitEndsWhenTheRankItNamesIsGone) {
  run_processes(3, settings(),
                [](World& world, ProcessRendezvous& rendezvous) {
                  auto window = must(Window::allocate(world, 64));
                  must(window.barrier());
                  const auto long_time = Deadline::in(std::chrono::minutes(4));
                  rendezvous.notes[1].fetch_add(1);  // nobody is in the barrier any more
                  if (world.rank() == 1) {
                    while (rendezvous.notes[1] != 3) world.progress();
                    ::raise(SIGKILL);
                  }
                  if (world.rank() == 2) {
                    while (rendezvous.notes[0] == 0) world.progress();
                    return;
                  }
                  const auto waited = window.wait_signal(3, Comparison::greater_equal, 1, long_time, 1);
                  ASSERT_FALSE(waited);
                  EXPECT_EQ(waited.status(), Status::peer_lost) << waited.error().text();
                  EXPECT_EQ(waited.error().where().peer, 1);
                  // Rank 2 could still do it: so this one only runs out of time.
                  EXPECT_EQ(
                      window.wait_signal(3, Comparison::greater_equal, 1, Deadline::in(milliseconds(1500))).status(),
                      Status::timeout);
                  const SignalCondition lost{3, Comparison::greater_equal, 1, 1};
                  const SignalCondition open{4, Comparison::greater_equal, 1, 2};
                  const std::array either{lost, open};
                  EXPECT_EQ(window.wait_all_signals(either, long_time).status(), Status::peer_lost);
                  EXPECT_EQ(window.wait_any_signal(either, Deadline::in(milliseconds(300))).status(), Status::timeout);
                  EXPECT_EQ(window.wait_any_signal({&lost, 1}, long_time).status(), Status::peer_lost);
                  rendezvous.notes[0] = 1;
                },
                {1});
}

Settings over_a_rail_with_a_short_peer_timeout(int /*rank*/) {
  Settings settings = loopback_settings(1);
  settings.shared_memory = "off";
  settings.peer_timeout_ms = 3000;
  return settings;
}

/// Ranks that were never reached are given up only when their time is over: that is the same time for all.
TEST(Waits, RanksThatAreGoneTogetherRunOutOfTimeTogether) {
  run_processes(4, over_a_rail_with_a_short_peer_timeout,
                [](World& world, ProcessRendezvous& rendezvous) {
                  auto window = must(Window::allocate(world, 64));
                  rendezvous.notes[0].fetch_add(1);
                  if (world.rank() != 0) ::raise(SIGKILL);
                  while (rendezvous.notes[0] != 4) std::this_thread::yield();
                  const auto start = std::chrono::steady_clock::now();
                  const auto waited =
                      window.wait_signal(3, Comparison::greater_equal, 1, Deadline::in(std::chrono::minutes(4)));
                  const auto took = std::chrono::steady_clock::now() - start;
                  EXPECT_EQ(waited.status(), Status::peer_lost) << waited.error().text();
                  EXPECT_LT(took, std::chrono::milliseconds(2 * 3000 + 1500)) << "three times the time of one";
                },
                {1, 2, 3});
}

TEST_P(WaitsTest, AnyAndAllOfSeveralSignals) {
  run_processes(2, settings(), [](World& world, ProcessRendezvous&) {
    auto window = must(Window::allocate(world, 64));
    const int peer = 1 - world.rank();
    const std::array conditions{SignalCondition{1, Comparison::equal, 5, peer},
                                SignalCondition{2, Comparison::greater_equal, 2},
                                SignalCondition{9, Comparison::not_equal, 0, peer}};
    EXPECT_EQ(window.wait_any_signal(conditions, Deadline::in(milliseconds(5))).status(), Status::timeout);
    must(window.barrier());
    must(window.signal(peer, {2, 3, SignalOp::set}));
    const SignalMet met = must(window.wait_any_signal(conditions));
    EXPECT_EQ(met.condition, 1U);
    EXPECT_EQ(met.held, 3U);
    must(window.barrier());
    must(window.signal(peer, {9, 1}));
    EXPECT_EQ(window.wait_all_signals(conditions, Deadline::in(milliseconds(5))).status(), Status::timeout);
    must(window.barrier());
    must(window.signal(peer, {1, 5}));
    must(window.wait_all_signals(conditions));
    EXPECT_EQ(window.read_signal(1), 5U);
    EXPECT_EQ(window.read_signal(9), 1U);
    EXPECT_EQ(window.wait_any_signal({}).status(), Status::invalid);
    EXPECT_EQ(window.wait_signal(1, Comparison::equal, 5, {}, 2).status(), Status::out_of_range);
    must(window.close());
  });
}

/// As it is by default: no wait has longer than the peer.
Settings with_equal_timeouts(int /*rank*/) {
  Settings settings = loopback_settings(1);
  settings.timeout_ms = settings.peer_timeout_ms = 1500;
  return settings;
}

struct NamedWait {
  const char* name;
  Result<void> (*wait)(Window& window, Deadline deadline);
};
class NamedWaitTest : public ::testing::TestWithParam<NamedWait> {};

template <typename T>
Result<void> outcome(Result<T> waited) {
  return waited ? Result<void>() : Result<void>(std::move(waited.error()));
}
const SignalCondition kFromRankOne{3, Comparison::greater_equal, 1, 1};

INSTANTIATE_TEST_SUITE_P(
    Calls, NamedWaitTest,
    ::testing::Values(NamedWait{"wait_signal",
                                [](Window& window, Deadline deadline) {
                                  return outcome(window.wait_signal(3, Comparison::greater_equal, 1, deadline, 1));
                                }},
                      NamedWait{"wait_any_signal",
                                [](Window& window, Deadline deadline) {
                                  return outcome(window.wait_any_signal({&kFromRankOne, 1}, deadline));
                                }},
                      NamedWait{"wait_all_signals",
                                [](Window& window, Deadline deadline) {
                                  return window.wait_all_signals({&kFromRankOne, 1}, deadline);
                                }},
                      NamedWait{"wait",
                                [](Window& window, Deadline deadline) {
                                  return window.wait(must(window.signal(1, {3, 1})), Completion::remote, deadline);
                                }},
                      NamedWait{"quiet_for_one",
                                [](Window& window, Deadline deadline) {
                                  must(window.signal(1, {3, 1}));
                                  return window.quiet(1, deadline);
                                }},
                      NamedWait{"quiet",
                                [](Window& window, Deadline deadline) {
                                  must(window.signal(1, {3, 1}));
                                  return window.quiet(deadline);
                                }},
                      NamedWait{"barrier", [](Window& window, Deadline deadline) { return window.barrier(deadline); }}),
    [](const auto& info) { return std::string(info.param.name); });

/// Rank 1 was never reached: nothing but its time says that it is gone.
void wait_for_a_rank_that_is_gone(Settings (*settings)(int), const std::function<void(Window&)>& body) {
  run_processes(2, settings,
                [&](World& world, ProcessRendezvous& rendezvous) {
                  auto window = must(Window::allocate(world, 64));
                  rendezvous.notes[0].fetch_add(1);
                  if (world.rank() == 1) ::raise(SIGKILL);
                  while (rendezvous.notes[0] != 2) std::this_thread::yield();
                  body(window);
                },
                {1});
}

TEST_P(NamedWaitTest, ByTheDefaultDeadlineSaysThatTheRankIsGone) {
  wait_for_a_rank_that_is_gone(with_equal_timeouts, [](Window& window) {
    const auto waited = GetParam().wait(window, {});
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.status(), Status::peer_lost) << waited.error().text();
    EXPECT_EQ(waited.error().where().peer, 1);
    EXPECT_NE(waited.error().text().find("silent for"), std::string::npos) << waited.error().text();
  });
}

TEST(Waits, InPartsTheLastOneSaysThatTheRankIsGone) {
  wait_for_a_rank_that_is_gone(with_equal_timeouts, [](Window& window) {
    const auto rest = Deadline::rest_of_default(milliseconds(1500));
    EXPECT_EQ(window.wait_signal(3, Comparison::greater_equal, 1, rest, 1).status(), Status::peer_lost);
  });
}

/// Late enough for the rank to be nearly lost.
TEST_P(NamedWaitTest, ByADeadlineOfTheCallersEndsThen) {
  const auto longer = [](int rank) {
    Settings settings = with_equal_timeouts(rank);
    settings.timeout_ms = settings.peer_timeout_ms = 3000;
    return settings;
  };
  wait_for_a_rank_that_is_gone(longer, [](Window& window) {
    const auto waited = GetParam().wait(window, Deadline::in(milliseconds(2500)));
    EXPECT_EQ(waited.status(), Status::timeout) << (waited ? "" : waited.error().text());
  });
}

/// Its process lives: it is not about to be lost, and no wait goes on for that.
TEST_P(NamedWaitTest, ByTheDefaultDeadlineForARankThatIsStoppedRunsOutOfTime) {
  run_processes(2, with_equal_timeouts,
                [](World& world, ProcessRendezvous& rendezvous) {
                  auto window = must(Window::allocate(world, 64));
                  must(window.barrier());
                  rendezvous.notes[static_cast<std::size_t>(world.rank())] = static_cast<std::uint64_t>(::getpid());
                  if (world.rank() == 1) {
                    while (rendezvous.notes[0] == 0) std::this_thread::yield();
                    std::this_thread::sleep_for(std::chrono::minutes(4));
                    return;
                  }
                  while (rendezvous.notes[1] == 0) std::this_thread::yield();
                  const auto other = static_cast<pid_t>(rendezvous.notes[1].load());
                  ASSERT_TRUE(stop_process(other));
                  const auto waited = GetParam().wait(window, {});
                  EXPECT_EQ(waited.status(), Status::timeout) << (waited ? "" : waited.error().text());
                  ::kill(other, SIGKILL);
                },
                {1});
}

/// Nobody else is there, and nobody is missed.
TEST(Waits, AWorldOfOneWaitsForItsOwnThreads) {
  const Settings settings = loopback_settings(1);
  WorldOptions options;
  options.settings = &settings;
  auto world = must(World::open(options));
  auto window = must(Window::allocate(world, 64));
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    must(window.signal(0, {0, 1}));
  });
  EXPECT_EQ(must(window.wait_signal(0, Comparison::equal, 1)), 1U);
  other.join();
  EXPECT_EQ(window.wait_signal(0, Comparison::equal, 2, Deadline::in(milliseconds(5)), 0).status(), Status::timeout);
  must(window.close());
}

}  // namespace
}  // namespace railyard
