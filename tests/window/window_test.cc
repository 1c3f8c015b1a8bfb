#include "railyard/window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>

#include "base/random.hpp"
#include "thread_world.hpp"

namespace railyard {
namespace {

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  Random random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

/// Every test runs on one rail, on several, and on memory that the ranks map from each other.
struct Way {
  const char* name;
  std::uint32_t rails;
  const char* shared_memory;
};
class WindowTest : public ::testing::TestWithParam<Way> {
 protected:
  Settings settings() const {
    Settings settings = loopback_settings(GetParam().rails);
    settings.shared_memory = GetParam().shared_memory;
    return settings;
  }
};
INSTANTIATE_TEST_SUITE_P(Rails, WindowTest,
                         ::testing::Values(Way{"1rails", 1, "off"}, Way{"3rails", 3, "off"}, Way{"direct", 2, "on"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(WindowTest, PutSignalBringsItsBytesAtEverySize) {
  run_ranks(2, settings(), [](World& world) {
    const std::size_t most = 3 << 20;
    auto window = must(Window::allocate(world, most));
    std::uint64_t round = 0;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{1024},
                                    std::size_t{1025}, std::size_t{65536}, std::size_t{100'001}, most}) {
      ++round;
      const auto sent = pattern(bytes, round);
      if (world.rank() == 0) {
        const Ticket ticket = must(window.put_signal(1, most - bytes, sent.data(), bytes, {3, 1}));
        must(window.wait(ticket));
        must(window.wait_signal(0, Comparison::greater_equal, round));
      } else {
        must(window.wait_signal(3, Comparison::greater_equal, round));
        EXPECT_TRUE(
            std::equal(sent.begin(), sent.end(), window.local().begin() + static_cast<std::ptrdiff_t>(most - bytes)))
            << bytes;
        must(window.signal(0, {0, 1}));
      }
    }
    must(window.close());
  });
}

TEST_P(WindowTest, ASignalCoversEarlierPutsOnAllRails) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kBytes = 1 << 20;
    auto window = must(Window::allocate(world, kBytes));
    Random sizes(7);
    for (std::uint64_t round = 1; round <= 60; ++round) {
      const auto sent = pattern(kBytes, round);
      if (world.rank() == 0) {
        for (std::size_t at = 0; at < kBytes;) {
          const std::size_t bytes = std::min<std::size_t>(kBytes - at, 1 + sizes.below(200'000));
          must(window.put(1, at, sent.data() + at, bytes));
          at += bytes;
        }
        must(window.signal(1, {0, 1}));
        must(window.wait_signal(0, Comparison::greater_equal, round));
        must(window.quiet());
      } else {
        must(window.wait_signal(0, Comparison::greater_equal, round));
        EXPECT_EQ(std::memcmp(window.local().data(), sent.data(), kBytes), 0) << "round " << round;
        must(window.signal(0, {0, 1}));
      }
    }
    must(window.close());
  });
}

/// All windows of a world share one sequence to each rank: what NCCL's signals, in memory of their own, rely on.
TEST_P(WindowTest, AWordOfOneWindowCoversPutsIntoAnother) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kBytes = 1 << 20;
    std::vector<std::byte> memory(kBytes);
    auto data = must(Window::adopt(world, memory));
    auto words = must(Window::allocate(world, 64));
    auto& word = *reinterpret_cast<std::uint64_t*>(words.local().data());
    Random sizes(11);
    for (std::uint64_t round = 1; round <= 60; ++round) {
      const auto sent = pattern(kBytes, round);
      if (world.rank() == 0) {
        for (std::size_t at = 0; at < kBytes;) {
          const std::size_t bytes = std::min<std::size_t>(kBytes - at, 1 + sizes.below(200'000));
          must(data.put(1, at, sent.data() + at, bytes));
          at += bytes;
        }
        must(words.atomic<std::uint64_t>(1, 0, AtomicOp::add, 1));
        must(data.wait_signal(0, Comparison::greater_equal, round));
        must(data.quiet());
      } else {
        while (std::atomic_ref(word).load(std::memory_order_acquire) < round) world.progress();
        EXPECT_EQ(std::memcmp(memory.data(), sent.data(), kBytes), 0) << "round " << round;
        must(data.signal(0, {0, 1}));
      }
    }
    must(data.close());
    must(words.close());
  });
}

TEST_P(WindowTest, GetsBringWhatIsThere) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kBytes = 2 << 20;
    auto window = must(Window::allocate(world, kBytes));
    const auto mine = pattern(kBytes, static_cast<std::uint64_t>(world.rank()));
    std::memcpy(window.local().data(), mine.data(), kBytes);
    must(window.barrier());
    const auto theirs = pattern(kBytes, static_cast<std::uint64_t>(1 - world.rank()));
    std::vector<std::byte> got(kBytes);
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{64}, std::size_t{5000}, kBytes}) {
      std::fill(got.begin(), got.end(), std::byte{0});
      must(window.wait(must(window.get(1 - world.rank(), kBytes - bytes, got.data(), bytes))));
      EXPECT_EQ(std::memcmp(got.data(), theirs.data() + kBytes - bytes, bytes), 0) << bytes;
    }
    must(window.close());
  });
}

TEST_P(WindowTest, AtomicsAreExactUnderContention) {
  constexpr int kRanks = 4;
  constexpr std::uint64_t kAdds = 500;
  run_ranks(kRanks, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 4096));
    std::vector<std::uint64_t> before(kAdds);
    for (std::uint64_t i = 0; i < kAdds; ++i) {
      must(window.fetch_atomic<std::uint64_t>(0, 0, AtomicOp::add, &before[i], 1));
      must(window.atomic<std::uint32_t>(0, 8, AtomicOp::add, 2));
      must(window.atomic<std::uint32_t>(0, 12, AtomicOp::increment, 0));
    }
    must(window.quiet());
    for (std::uint64_t i = 1; i < kAdds; ++i) EXPECT_LT(before[i - 1], before[i]) << "in order, each once";
    must(window.barrier());
    if (world.rank() == 0) {
      std::uint64_t sum = 0;
      std::uint32_t narrow = 0;
      std::memcpy(&sum, window.local().data(), 8);
      EXPECT_EQ(sum, kRanks * kAdds);
      std::memcpy(&narrow, window.local().data() + 8, 4);
      EXPECT_EQ(narrow, kRanks * kAdds * 2);
      std::memcpy(&narrow, window.local().data() + 12, 4);
      EXPECT_EQ(narrow, kRanks * kAdds);
    }
    must(window.close());
  });
}

TEST_P(WindowTest, EveryFetchingFormReturnsWhatWasThere) {
  run_ranks(2, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 64));
    if (world.rank() == 0) {
      every_fetching_form(window, 1, 8);
      std::int32_t narrow = 0;
      must(window.wait(must(window.fetch_atomic<std::int32_t>(1, 16, AtomicOp::add, &narrow, -5))));
      must(window.wait(must(window.fetch_atomic<std::int32_t>(1, 16, AtomicOp::fetch, &narrow))));
      EXPECT_EQ(narrow, -5);
    }
    must(window.barrier());
    must(window.close());
  });
}

TEST_P(WindowTest, ManySourcesAddToOneSignalExactly) {
  constexpr int kRanks = 5;
  run_ranks(kRanks, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 1 << 16));
    const auto source = pattern(5000, 1);
    constexpr std::uint64_t kPuts = 300;
    if (world.rank() != 0) {
      Random sizes(static_cast<std::uint64_t>(world.rank()));
      for (std::uint64_t i = 0; i < kPuts; ++i) {
        must(window.put_signal(0, static_cast<std::size_t>(world.rank()) * 8192, source.data(), sizes.below(5000),
                               {0, 3}));
      }
      must(window.quiet());
    } else {
      must(window.wait_signal(0, Comparison::equal, 3 * kPuts * (kRanks - 1)));
    }
    must(window.barrier());
    EXPECT_EQ(window.read_signal(0), world.rank() == 0 ? 3 * kPuts * (kRanks - 1) : 0U);
    must(window.close());
  });
}

TEST_P(WindowTest, CountersAdvanceWhenTheSourceIsFree) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kBytes = 300'000;
    auto window = must(Window::allocate(world, kBytes));
    if (world.rank() == 0) {
      std::vector<std::byte> source(kBytes);
      for (std::uint64_t round = 1; round <= 20; ++round) {
        source = pattern(kBytes, round);
        must(window.put_signal_counter(1, 0, source.data(), kBytes, {0, 1}, {5, 2}));
        must(window.wait_counter(5, 2 * round));
        std::fill(source.begin(), source.end(), std::byte{0xdd});  // the source is ours again
        must(window.wait_signal(1, Comparison::equal, round));
      }
      must(window.put_counter(1, 0, source.data(), 4, {6, 1}));
      must(window.wait_counter(6, 1));
      must(window.reset_counter(5));
      EXPECT_EQ(window.read_counter(5), 0U);
    } else {
      for (std::uint64_t round = 1; round <= 20; ++round) {
        must(window.wait_signal(0, Comparison::equal, round));
        EXPECT_EQ(std::memcmp(window.local().data(), pattern(kBytes, round).data(), kBytes), 0);
        must(window.signal(0, {1, 1}));
      }
    }
    must(window.close());
  });
}

TEST_P(WindowTest, RelaxedPutsAreCoveredByFenceAndQuiet) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kBytes = 500'000;
    auto window = must(Window::allocate(world, kBytes));
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const auto sent = pattern(kBytes, round);
      if (world.rank() == 0) {
        must(window.put(1, 0, sent.data(), 100, Order::relaxed));
        must(window.put(1, 100, sent.data() + 100, kBytes - 100, Order::relaxed));
        must(window.fence(1));
        must(window.signal(1, {0, 1}));
        must(window.quiet(1));
        must(window.wait_signal(0, Comparison::equal, round));
      } else {
        must(window.wait_signal(0, Comparison::equal, round));
        EXPECT_EQ(std::memcmp(window.local().data(), sent.data(), kBytes), 0);
        must(window.signal(0, {0, 1}));
      }
    }
    must(window.close());
  });
}

TEST_P(WindowTest, AFenceOrdersPutsToOnePlace) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kBytes = 200'000;
    auto window = must(Window::allocate(world, kBytes));
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const auto first = pattern(kBytes, 2 * round);
      const auto second = pattern(kBytes, 2 * round + 1);
      if (world.rank() == 0) {
        must(window.put(1, 0, first.data(), kBytes));
        must(window.fence(1));
        must(window.put(1, 0, second.data(), kBytes));
        must(window.signal(1, {0, 1}));
        must(window.wait_signal(0, Comparison::equal, round));
        must(window.quiet());
      } else {
        must(window.wait_signal(0, Comparison::equal, round));
        EXPECT_EQ(std::memcmp(window.local().data(), second.data(), kBytes), 0);
        must(window.signal(0, {0, 1}));
      }
    }
    must(window.close());
  });
}

TEST_P(WindowTest, ToOneselfEverythingWorksToo) {
  run_ranks(2, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 4096));
    const int self = world.rank();
    const auto sent = pattern(1000, 3);
    must(window.wait(must(window.put_signal_counter(self, 8, sent.data(), 1000, {2, 5}, {1, 1}))));
    EXPECT_EQ(std::memcmp(window.local().data() + 8, sent.data(), 1000), 0);
    EXPECT_EQ(window.read_signal(2), 5U);
    EXPECT_EQ(window.read_counter(1), 1U);
    std::uint64_t was = 9;
    must(window.wait(must(window.fetch_atomic<std::uint64_t>(self, 2048, AtomicOp::add, &was, 4))));
    EXPECT_EQ(was, 0U);
    std::vector<std::byte> got(1000);
    must(window.wait(must(window.get(self, 8, got.data(), 1000))));
    EXPECT_EQ(got, sent);
    must(window.put_value<std::uint16_t>(self, 0, 0xabcd));
    EXPECT_EQ(window.local()[1], std::byte{0xab});
    must(window.quiet(self));
    must(window.close());
  });
}

TEST_P(WindowTest, PutValueTakesOneToEightBytes) {
  run_ranks(2, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 64));
    if (world.rank() == 0) {
      const std::array<std::uint8_t, 8> value{1, 2, 3, 4, 5, 6, 7, 8};
      for (std::size_t bytes = 1; bytes <= 8; ++bytes) must(window.put_value(1, bytes * 8 - 8, value.data(), bytes));
      EXPECT_EQ(window.put_value(1, 0, value.data(), 9).status(), Status::invalid);
      EXPECT_EQ(window.put_value(1, 0, value.data(), 0).status(), Status::invalid);
      must(window.signal(1, {0, 1}));
    } else {
      must(window.wait_signal(0, Comparison::equal, 1));
      for (std::size_t bytes = 1; bytes <= 8; ++bytes) {
        for (std::size_t i = 0; i < 8; ++i) {
          EXPECT_EQ(window.local()[bytes * 8 - 8 + i], std::byte{static_cast<std::uint8_t>(i < bytes ? i + 1 : 0)});
        }
      }
    }
    must(window.barrier());
    must(window.close());
  });
}

TEST_P(WindowTest, EveryComparisonAndResetWork) {
  run_ranks(1, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 8));
    must(window.signal(0, {0, 5, SignalOp::set}));
    const auto now = Deadline::in(std::chrono::nanoseconds(0));
    const auto holds = [&](Comparison comparison, std::uint64_t value) {
      return window.wait_signal(0, comparison, value, now).ok();
    };
    EXPECT_TRUE(holds(Comparison::equal, 5));
    EXPECT_FALSE(holds(Comparison::equal, 4));
    EXPECT_TRUE(holds(Comparison::not_equal, 4));
    EXPECT_FALSE(holds(Comparison::not_equal, 5));
    EXPECT_TRUE(holds(Comparison::less, 6));
    EXPECT_FALSE(holds(Comparison::less, 5));
    EXPECT_TRUE(holds(Comparison::less_equal, 5));
    EXPECT_FALSE(holds(Comparison::less_equal, 4));
    EXPECT_TRUE(holds(Comparison::greater, 4));
    EXPECT_FALSE(holds(Comparison::greater, 5));
    EXPECT_TRUE(holds(Comparison::greater_equal, 5));
    EXPECT_FALSE(holds(Comparison::greater_equal, 6));
    must(window.reset_signal(0));
    EXPECT_EQ(window.read_signal(0), 0U);
    must(window.close());
  });
}

TEST_P(WindowTest, TheCallersMemorySignalsAndCountersAreUsed) {
  run_ranks(2, settings(), [](World& world) {
    std::vector<std::byte> memory(100'000 + static_cast<std::size_t>(world.rank()) * 1000);
    std::array<std::uint64_t, 3> signals{9, 9, 9};
    std::array<std::uint64_t, 2> counters{9, 9};
    WindowOptions options;
    options.per_rank = true;
    options.signal_memory = signals;
    options.counter_memory = counters;
    auto window = must(Window::adopt(world, memory, options));
    EXPECT_EQ(window.bytes(0), 100'000U);
    EXPECT_EQ(window.bytes(1), 101'000U);
    const auto sent = pattern(90'000, 4);
    if (world.rank() == 0) {
      must(window.put_signal_counter(1, 11'000, sent.data(), 90'000, {2, 7}, {1, 4}));
      must(window.wait_counter(1, 4));
      EXPECT_EQ(counters[1], 4U);
    } else {
      must(window.wait_signal(2, Comparison::equal, 7));
      EXPECT_EQ(signals[2], 7U);
      EXPECT_EQ(std::memcmp(memory.data() + 11'000, sent.data(), 90'000), 0);
    }
    must(window.close());
  });
}

TEST_P(WindowTest, AWindowCarriesOnWithoutARankThatIsGone) {
  run_ranks(3, settings(), [](World& world) {
    auto window = must(Window::allocate(world, 4096));
    must(window.barrier());
    if (world.rank() == 2) return;  // goes without closing anything
    const std::uint64_t value = 7;
    // What is sent to it before its end is noticed may be lost, what comes later is refused: either way it is named.
    Result<void> told;
    while (told.ok()) {
      if (auto put = window.put(2, 0, &value, sizeof value); !put) told = std::move(put.error());
      if (told.ok()) told = window.quiet(2);
    }
    EXPECT_EQ(told.status(), Status::peer_lost) << told.error().text();
    EXPECT_EQ(told.error().where().peer, 2);
    // The other one is as it was; `quiet` has at most one thing left to tell.
    const int other = 1 - world.rank();
    must(window.put_signal(other, 0, &value, sizeof value, {0, 1}));
    if (auto all = window.quiet(); !all) {
      EXPECT_EQ(all.status(), Status::peer_lost);
    }
    must(window.quiet());
    must(window.wait_signal(0, Comparison::greater_equal, 1));
    must(window.quiet(other));
    must(window.signal(other, {1, 1}));
    must(window.wait_signal(1, Comparison::greater_equal, 1));
    must(window.quiet(other));
  });
}

TEST_P(WindowTest, SeveralThreadsShareOneWindow) {
  run_ranks(2, settings(), [](World& world) {
    constexpr std::size_t kThreads = 4;
    constexpr std::size_t kSpan = 70'000;
    constexpr std::uint64_t kRounds = 40;
    auto window = must(Window::allocate(world, kThreads * kSpan));
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t round = 1; round <= kRounds; ++round) {
          const std::size_t bytes = round % 2 == 0 ? kSpan : 200;
          const auto sent = pattern(bytes, round * kThreads + t);
          if (world.rank() == 0) {
            must(window.put_signal(1, t * kSpan, sent.data(), bytes, {t, 1}));
            must(window.wait_signal(t, Comparison::greater_equal, round));
          } else {
            must(window.wait_signal(t, Comparison::greater_equal, round));
            EXPECT_EQ(std::memcmp(window.local().data() + t * kSpan, sent.data(), bytes), 0);
            must(window.signal(0, {t, 1}));
          }
        }
      });
    }
    for (auto& thread : threads) thread.join();
    must(window.close());
  });
}

TEST_P(WindowTest, SeveralWindowsDoNotMeet) {
  run_ranks(3, settings(), [](World& world) {
    auto first = must(Window::allocate(world, 64));
    auto second = must(Window::allocate(world, 128));
    const int next = (world.rank() + 1) % world.size();
    must(first.put_value<std::uint64_t>(next, 0, 11));
    must(second.put_value<std::uint64_t>(next, 0, 22));
    must(first.signal(next, {0, 1}));
    must(second.signal(next, {0, 1}));
    must(first.wait_signal(0, Comparison::equal, 1));
    must(second.wait_signal(0, Comparison::equal, 1));
    EXPECT_EQ(first.local()[0], std::byte{11});
    EXPECT_EQ(second.local()[0], std::byte{22});
    must(first.barrier());
    must(first.close());
    must(second.close());
  });
}

TEST_P(WindowTest, BarrierHoldsEveryoneBack) {
  run_ranks(5, settings(), [](World& world) {
    static std::atomic<int> inside{0};
    if (world.rank() == 0) inside = 0;
    auto window = must(Window::allocate(world, 64));
    for (int round = 1; round <= 30; ++round) {
      ++inside;
      must(window.barrier());
      EXPECT_GE(inside.load(), 5 * round);
      must(window.barrier());
    }
    must(window.close());
  });
}

}  // namespace
}  // namespace railyard
