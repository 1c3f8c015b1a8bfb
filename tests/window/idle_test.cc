/// Ranks that have nothing to do, and ranks that are busy with something else.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "cpu_time.hpp"
#include "process_world.hpp"
#include "railyard/window.hpp"

namespace railyard {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kIdleShare = 0.01;  // of a core
constexpr auto kIdleTime = seconds(3);

struct IdleBed {
  const char* name;
  std::uint32_t rails;
  const char* shared_memory;
  bool adopts;  ///< memory that peers cannot map: signals come over the rails
};
class IdleTest : public ::testing::TestWithParam<IdleBed> {
 protected:
  static Settings settings(int /*rank*/ = 0) {
    Settings settings = loopback_settings(GetParam().rails);
    settings.shared_memory = GetParam().shared_memory;
    return settings;
  }
  /// Signals lie in `signals` where peers are to reach them over the rails alone.
  static Window make(World& world, std::span<std::byte> memory, std::span<std::uint64_t> signals) {
    WindowOptions options;
    if (!GetParam().adopts) return must(Window::allocate(world, memory.size(), options));
    options.signals = signals.size();
    options.signal_memory = signals;
    return must(Window::adopt(world, memory, options));
  }
};
INSTANTIATE_TEST_SUITE_P(Rails, IdleTest,
                         ::testing::Values(IdleBed{"network", 1, "off", false}, IdleBed{"mapped", 1, "on", false},
                                           IdleBed{"shared_memory_rail", 1, "on", true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(IdleTest, AnIdleWorldSleeps) {
  run_processes(2, settings, [](World& world, ProcessRendezvous&) {
    std::vector<std::byte> memory(4096);
    std::vector<std::uint64_t> signals(8);
    auto window = make(world, memory, signals);
    must(window.barrier());
    std::this_thread::sleep_for(milliseconds(100));
    const CpuTime cpu;
    std::this_thread::sleep_for(kIdleTime);
    EXPECT_LT(cpu.share(), kIdleShare);
    must(window.barrier());
    must(window.close());
  });
}

TEST_P(IdleTest, ALongWaitSleepsAndIsWoken) {
  run_processes(2, settings, [](World& world, ProcessRendezvous&) {
    std::vector<std::byte> memory(4096);
    std::vector<std::uint64_t> signals(8);
    auto window = make(world, memory, signals);
    const int peer = 1 - world.rank();
    must(window.barrier());
    for (std::uint64_t round = 1; round <= 2; ++round) {
      if (world.rank() == 0) {
        std::this_thread::sleep_for(seconds(2));
        must(window.signal(peer, {1, 1}));
        must(window.wait_signal(2, Comparison::greater_equal, round));
      } else {
        const CpuTime cpu;
        must(window.wait_signal(1, Comparison::greater_equal, round, Deadline::in(seconds(60)), peer));
        // A wait spins and yields before it sleeps, and rails that wake nobody are polled now and then.
        EXPECT_LT(cpu.share(), 10 * kIdleShare);
        must(window.signal(peer, {2, 1}));
      }
    }
    must(window.close());
  });
}

/// Its peers wait for answers longer than they would for a silent one.
TEST_P(IdleTest, ARankThatComputesKeepsItsPeers) {
  const auto impatient = [](int rank) {
    Settings mine = settings(rank);
    mine.peer_timeout_ms = 500;
    return mine;
  };
  run_processes(2, impatient, [](World& world, ProcessRendezvous& rendezvous) {
    std::vector<std::byte> memory(1 << 20);
    std::vector<std::uint64_t> signals(8);
    auto window = make(world, memory, signals);
    must(window.barrier());
    if (world.rank() == 1) {
      const auto until = std::chrono::steady_clock::now() + seconds(3);
      while (std::chrono::steady_clock::now() < until) rendezvous.notes[0].fetch_add(1);
    } else {
      std::vector<std::byte> source(1 << 20, std::byte{7});
      for (int i = 0; i < 20; ++i) {
        must(window.put_signal(1, 0, source.data(), source.size(), {3, 1}));
        must(window.quiet());
        std::this_thread::sleep_for(milliseconds(100));
      }
    }
    must(window.barrier());
    if (world.rank() == 1) {
      EXPECT_EQ(window.read_signal(3), 20U);
      EXPECT_EQ(window.local().back(), std::byte{7});
    }
    EXPECT_EQ(world.statistics().peers_lost, 0U);
    must(window.close());
  });
}

/// By the signal, and not only by the alarm of a world that looks around: so some come while it sleeps longest.
TEST_P(IdleTest, AnEventLoopIsWoken) {
  constexpr std::uint64_t kRounds = 20;
  constexpr std::uint64_t kLongRounds = 3;
  constexpr auto kLongPause = milliseconds(650);  // between two alarms, which are half a second apart
  const auto now = [] {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  };
  for (const char* const progress : {"caller", "auto"}) {
    const auto quiet_settings = [progress](int rank) {
      Settings mine = settings(rank);
      mine.progress = progress;
      return mine;
    };
    run_processes(2, quiet_settings, [&](World& world, ProcessRendezvous& rendezvous) {
      std::vector<std::byte> memory(4096);
      std::vector<std::uint64_t> signals(8);
      auto window = make(world, memory, signals);
      const int peer = 1 - world.rank();
      if (world.rank() == 0) {
        EXPECT_FALSE(world.arm()) << "there is no descriptor yet";
        pollfd readable{must(world.descriptor()), POLLIN, 0};
        EXPECT_EQ(must(world.descriptor()), readable.fd);
        std::uint64_t quickest = UINT64_MAX;
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
          while (window.read_signal(1) < round) {
            do world.progress();
            while (!world.arm());
            if (window.read_signal(1) >= round) break;
            EXPECT_GT(::poll(&readable, 1, 10'000), 0) << "round " << round;
          }
          if (round > kRounds - kLongRounds) quickest = std::min(quickest, now() - rendezvous.notes[0]);
          must(window.signal(peer, {1, 1}));
          must(window.quiet());
        }
        EXPECT_LT(quickest, 100'000'000U) << "nanoseconds";
      } else {
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
          std::this_thread::sleep_for(round > kRounds - kLongRounds ? kLongPause : milliseconds(5));
          rendezvous.notes[0] = now();
          must(window.signal(peer, {1, 1}));
          must(window.wait_signal(1, Comparison::greater_equal, round));
        }
      }
      must(window.close());
    });
  }
}

/// A look at a ticket makes no pass: that would make the descriptor readable, and the loop would never sleep.
TEST_P(IdleTest, AnEventLoopLooksAtTicketsAndSleeps) {
  if (!GetParam().adopts && std::string(GetParam().shared_memory) == "on")
    GTEST_SKIP() << "puts into mapped memory are complete at once";
  const auto by_hand = [](int rank) {
    Settings mine = settings(rank);
    mine.progress = "caller";
    return mine;
  };
  run_processes(2, by_hand, [](World& world, ProcessRendezvous& rendezvous) {
    std::vector<std::byte> memory(4096);
    std::vector<std::uint64_t> signals(8);
    auto window = make(world, memory, signals);
    must(window.barrier());
    if (world.rank() == 1) {
      while (rendezvous.notes[0].load() == 0) std::this_thread::sleep_for(milliseconds(5));  // answers nobody
    } else {
      pollfd readable{must(world.descriptor()), POLLIN, 0};
      const std::uint64_t word = 7;
      const Ticket ticket = must(window.put(1, 0, &word, sizeof word));
      int undisturbed = 0;
      // What else happens may wake it, too.
      for (int attempt = 0; attempt < 100 && undisturbed == 0; ++attempt) {
        do world.progress();
        while (!world.arm());
        if (::poll(&readable, 1, 0) != 0) continue;
        EXPECT_FALSE(must(window.peek(ticket)));
        undisturbed += ::poll(&readable, 1, 0) == 0 ? 1 : 0;
      }
      EXPECT_EQ(undisturbed, 1);
      rendezvous.notes[0].store(1);
      must(window.wait(ticket));
      EXPECT_TRUE(must(window.peek(ticket)));
      EXPECT_TRUE(must(window.peek(ticket, Completion::local)));
      EXPECT_EQ(window.peek(ticket, static_cast<Completion>(7)).status(), Status::invalid);
    }
    must(window.barrier());
    must(window.close());
  });
}

/// Each way of waiting finds what it waits for, and none misses its deadline.
TEST_P(IdleTest, EveryWaitingPolicyWorks) {
  for (const char* const policy : {"spin", "yield", "sleep", "auto"}) {
    const auto waiting = [policy](int rank) {
      Settings mine = settings(rank);
      mine.wait = policy;
      return mine;
    };
    run_processes(2, waiting, [](World& world, ProcessRendezvous&) {
      std::vector<std::byte> memory(1 << 16);
      std::vector<std::uint64_t> signals(8);
      auto window = make(world, memory, signals);
      const int peer = 1 - world.rank();
      std::vector<std::byte> source(1 << 16, std::byte{1});
      for (std::uint64_t round = 1; round <= 200; ++round) {
        if (round % 50 == static_cast<std::uint64_t>(world.rank())) std::this_thread::sleep_for(milliseconds(20));
        must(window.put_signal(peer, 0, source.data(), source.size(), {1, 1}));
        must(window.wait_signal(1, Comparison::greater_equal, round));
      }
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(window.wait_signal(5, Comparison::equal, 1, Deadline::in(milliseconds(30))).status(), Status::timeout);
      EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(30));
      must(window.close());
    });
  }
}

}  // namespace
}  // namespace railyard
