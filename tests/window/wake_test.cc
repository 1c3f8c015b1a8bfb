/// Who wakes whom: signals wake ranks that sleep in waits, and nobody is woken for what its waker does itself.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "process_world.hpp"
#include "railyard/window.hpp"
#include "window/world_state.hpp"

namespace railyard {
namespace {

using std::chrono::seconds;

constexpr int kRounds = 20;

transport::Engine& engine_of(World& world) { return window_detail::WorldAccess::state(world).engine(); }

/// False: it has not become true in a time that is long for anything.
template <typename Condition>
bool becomes_true(Condition&& condition) {
  const auto until = std::chrono::steady_clock::now() + seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    ::sched_yield();
  }
  return true;
}

/// Whether that thread of another process sleeps in the kernel.
bool sleeps(std::uint64_t thread) {
  std::ifstream file("/proc/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && line[name_end + 2] == 'S';
}

Settings sleepy(Settings settings) {
  settings.wait = "sleep";
  settings.progress = "caller";
  return settings;
}
Settings network_settings(int /*rank*/ = 0) {
  Settings settings = loopback_settings(1);
  settings.shared_memory = "off";
  return settings;
}

/// Rank 1 sleeps in `wait` when rank 0 makes its call.
void wake_sleeping_rank(const std::function<void(Window&, std::uint64_t)>& call,
                        const std::function<void(Window&, std::uint64_t)>& wait) {
  run_processes(
      2, [](int rank) { return rank == 1 ? sleepy(direct_settings()) : direct_settings(); },
      [&](World& world, ProcessRendezvous& rendezvous) {
        auto window = must(Window::allocate(world, 4096));
        if (world.rank() == 1) rendezvous.notes[0] = static_cast<std::uint64_t>(::syscall(SYS_gettid));
        must(world.barrier());
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
          if (world.rank() == 1) {
            rendezvous.notes[1] = round;
            wait(window, round);
            continue;
          }
          ASSERT_TRUE(becomes_true([&] { return rendezvous.notes[1] == round && sleeps(rendezvous.notes[0]); }));
          call(window, round);
        }
        // Not in each round: it may have woken by itself in this moment.
        if (world.rank() == 0) {
          EXPECT_GT(world.statistics().direct_wakes, 0U);
        }
        must(window.close());
      });
}

TEST(Wake, ASignalWakesARankThatSleepsOnMappedMemory) {
  wake_sleeping_rank(
      [](Window& window, std::uint64_t) {
        must(window.signal(1, {1, 1}));
      },
      [](Window& window, std::uint64_t round) { must(window.wait_signal(1, Comparison::greater_equal, round)); });
}

/// A plain store: no locked instruction orders it before the look at who sleeps.
TEST(Wake, ASignalThatIsSetWakesToo) {
  const std::uint64_t value = 7;
  wake_sleeping_rank(
      [&](Window& window, std::uint64_t round) {
        must(window.put_signal(1, 8, &value, sizeof value, {1, round, SignalOp::set}));
      },
      [](Window& window, std::uint64_t round) { must(window.wait_signal(1, Comparison::equal, round)); });
}

TEST(Wake, ABarrierWakesWhoWaitsInIt) {
  wake_sleeping_rank([](Window& window, std::uint64_t) { must(window.barrier()); },
                     [](Window& window, std::uint64_t) { must(window.barrier()); });
}

/// It costs the one who puts nothing but a look: ranks that are awake are not rung for.
TEST(Wake, NobodyIsRungForWhoIsAwake) {
  const auto awake = [](int) {
    Settings settings = direct_settings();
    settings.wait = "yield";
    return settings;
  };
  run_processes(2, awake, [](World& world, ProcessRendezvous&) {
    auto window = must(Window::allocate(world, 4096));
    for (std::uint64_t round = 1; round <= 1000; ++round) {
      must(window.signal(1 - world.rank(), {1, 1}));
      must(window.wait_signal(1, Comparison::greater_equal, round));
    }
    EXPECT_EQ(world.statistics().direct_wakes, 0U);
    must(window.close());
  });
}

/// A rank that was killed after it had stored its signal, and before it could ring.
TEST(Wake, AStoreThatNobodyRingsForIsSeenAllTheSame) {
  const auto settings = [](int) { return sleepy(network_settings()); };
  run_processes(2, settings, [](World& world, ProcessRendezvous&) {
    std::vector<std::byte> memory(4096);
    std::vector<std::uint64_t> signals(8);
    WindowOptions options;
    options.signals = signals.size();
    options.signal_memory = signals;
    auto window = must(Window::adopt(world, memory, options));
    must(window.barrier());
    if (world.rank() == 0) {
      std::thread waiter([&] { must(window.wait_signal(1, Comparison::equal, 1)); });
      EXPECT_TRUE(becomes_true([&] { return engine_of(world).waiting().attended(); }));
      std::atomic_ref<std::uint64_t>(signals[1]).store(1);
      waiter.join();
    }
    must(window.barrier());
    must(window.close());
  });
}

class WakeTest : public ::testing::TestWithParam<bool> {
 protected:
  static Settings settings(int rank = 0) { return GetParam() ? direct_settings(rank) : network_settings(rank); }
};
INSTANTIATE_TEST_SUITE_P(Ways, WakeTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "mapped" : "network"); });

TEST_P(WakeTest, AThreadWakesAnother) {
  run_processes(
      2, [](int rank) { return sleepy(settings(rank)); },
      [](World& world, ProcessRendezvous&) {
        auto window = must(Window::allocate(world, 4096));
        transport::Engine& engine = engine_of(world);
        const int self = world.rank();
        must(window.barrier());
        const std::uint64_t before = engine.waiting().nudges();
        for (std::uint64_t round = 1; self == 0 && round <= kRounds; ++round) {
          std::atomic<std::uint64_t> thread = 0;
          std::thread waiter([&] {
            thread = static_cast<std::uint64_t>(::syscall(SYS_gettid));
            must(window.wait_signal(1, Comparison::greater_equal, round));
          });
          EXPECT_TRUE(becomes_true([&] { return engine.waiting().attended() && sleeps(thread); }));
          must(window.signal(self, {1, 1}));
          waiter.join();
        }
        if (self == 0) {
          EXPECT_GT(engine.waiting().nudges(), before);
        }
        must(window.barrier());
        must(window.close());
      });
}

/// One of them sleeps on the rails, the other one behind it; and each is woken when its turn comes.
TEST_P(WakeTest, TwoThreadsOfARankAreWokenInAnyOrder) {
  run_processes(
      2, [](int rank) { return sleepy(settings(rank)); },
      [](World& world, ProcessRendezvous& rendezvous) {
        auto window = must(Window::allocate(world, 4096));
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
          if (world.rank() == 1) {
            std::thread other([&] { must(window.wait_signal(2, Comparison::greater_equal, round)); });
            rendezvous.notes[0] = round;
            must(window.wait_signal(1, Comparison::greater_equal, round));
            rendezvous.notes[1] = round;
            other.join();
            must(window.signal(0, {3, 1}));
            continue;
          }
          EXPECT_TRUE(becomes_true([&] { return rendezvous.notes[0] == round; }));
          const std::size_t first = 1 + round % 2;
          must(window.signal(1, {first, 1}));
          must(window.signal(1, {3 - first, 1}));
          must(window.wait_signal(3, Comparison::greater_equal, round));
        }
        must(window.close());
      });
}

/// The progress thread sleeps; a caller that puts and waits does it all by itself.
TEST_P(WakeTest, ACallerWhoWaitsDoesNotWakeItsProgressThread) {
  const auto spinning = [](int rank) {
    Settings mine = settings(rank);
    mine.progress = "thread";
    if (rank == 0) mine.wait = "spin";
    return mine;
  };
  run_processes(2, spinning, [](World& world, ProcessRendezvous&) {
    std::vector<std::byte> memory(4096);
    auto window = must(Window::adopt(world, memory, {}));  // over the rails, also where memory is shared
    transport::Engine& engine = engine_of(world);
    const int peer = 1 - world.rank();
    const std::uint64_t value = 5;
    must(window.barrier());
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (world.rank() == 1) {
        must(window.wait_signal(1, Comparison::greater_equal, round));
        must(window.put_signal(peer, 0, &value, sizeof value, {1, 1}));
        continue;
      }
      ASSERT_TRUE(becomes_true([&] { return engine.waiting().attended() && engine.completions().outstanding() == 0; }));
      const std::uint64_t before = engine.waiting().nudges();
      must(window.put_signal(peer, 0, &value, sizeof value, {1, 1}));
      must(window.wait_signal(1, Comparison::greater_equal, round));
      EXPECT_EQ(engine.waiting().nudges(), before) << "round " << round;
    }
    must(window.close());
  });
}

/// It makes no call after its put; and again right after a wait, when the thread has just been pushed aside.
TEST_P(WakeTest, WhatACallerLeavesUndoneItsProgressThreadDoes) {
  const auto threaded = [](int rank) {
    Settings mine = settings(rank);
    mine.progress = "thread";
    return mine;
  };
  run_processes(2, threaded, [](World& world, ProcessRendezvous&) {
    std::vector<std::byte> memory(1 << 20);
    auto window = must(Window::adopt(world, memory, {}));
    transport::Engine& engine = engine_of(world);
    std::vector<std::byte> source(1 << 20, std::byte{3});
    must(window.barrier());
    for (int round = 0; world.rank() == 0 && round < kRounds; ++round) {
      ASSERT_TRUE(becomes_true([&] { return engine.waiting().attended(); }));
      if (round % 2 == 1) must(window.wait(must(window.put_signal(1, 0, source.data(), 8, {1, 1}))));
      const std::size_t bytes = round % 3 == 0 ? source.size() : 8;
      must(window.put_signal(1, 0, source.data(), bytes, {2, 1}));
      EXPECT_TRUE(becomes_true([&] { return engine.completions().outstanding() == 0; })) << "round " << round;
    }
    must(window.barrier());
    EXPECT_EQ(window.read_signal(2), world.rank() == 1 ? std::uint64_t{kRounds} : 0U);
    must(window.close());
  });
}

}  // namespace
}  // namespace railyard
