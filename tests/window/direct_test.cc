/// Windows in heaps that the ranks map from each other: ranks as processes, every promise as over the rails.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/random.hpp"
#include "process_world.hpp"
#include "window/assemble.hpp"

namespace railyard {
namespace {

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  Random random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

bool holds(const Window& window, std::size_t offset, std::span<const std::byte> expected) {
  return expected.empty() || std::memcmp(window.local().data() + offset, expected.data(), expected.size()) == 0;
}

/// Everything but the ranks in `off`, which go over the rails.
auto all_but(std::set<int> off) {
  return [off = std::move(off)](int rank) {
    Settings settings = direct_settings();
    if (off.contains(rank)) settings.shared_memory = "off";
    return settings;
  };
}

TEST(Direct, EveryByteIsThereAtItsSignal) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    constexpr std::size_t kMost = 8 << 20;
    auto window = must(Window::allocate(world, kMost));
    Random random(11);
    std::vector<std::size_t> sizes{0, 1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 127, 1000, 1024, 4096, 16383, 16384, 16385};
    for (int i = 0; i < 60; ++i) sizes.push_back(random.below(40'000));
    sizes.insert(sizes.end(), {65536, 1 << 20, (1 << 20) + 13, kMost});
    std::uint64_t round = 0;
    for (const std::size_t bytes : sizes) {
      ++round;
      const std::size_t offset = random.below(std::min<std::uint64_t>(kMost - bytes, 200) + 1);
      const auto sent = pattern(bytes + 3, round);
      const std::span<const std::byte> message = std::span(sent).subspan(round % 4, bytes);
      // There and back: each rank is origin and target.
      for (const int origin : {0, 1}) {
        if (world.rank() == origin) {
          const Ticket ticket = must(window.put_signal(1 - origin, offset, message.data(), bytes, {3, 1}));
          EXPECT_EQ(ticket.number, 0U) << "complete from the start";
          must(window.wait(ticket));
          EXPECT_TRUE(must(window.test(ticket)));
        } else {
          must(window.wait_signal(3, Comparison::greater_equal, round));
          ASSERT_TRUE(holds(window, offset, message)) << bytes << " bytes at " << offset;
        }
      }
    }
    const WorldStatistics seen = world.statistics();
    EXPECT_EQ(seen.direct_puts, sizes.size());
    std::size_t sum = 0;
    for (const std::size_t bytes : sizes) sum += bytes;
    EXPECT_EQ(seen.direct_bytes_put, sum);
    EXPECT_EQ(seen.rails.front().writes_sent, 0U);
    must(window.close());
  });
}

TEST(Direct, AStreamOfPutsIsCoveredByItsSignal) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    constexpr std::size_t kBytes = 1 << 20;
    auto window = must(Window::allocate(world, kBytes));
    Random sizes(7);
    for (std::uint64_t round = 1; round <= 100; ++round) {
      const auto sent = pattern(kBytes, round);
      if (world.rank() == 0) {
        for (std::size_t at = 0; at < kBytes;) {
          const std::size_t bytes = std::min<std::size_t>(kBytes - at, 1 + sizes.below(60'000));
          must(window.put(1, at, sent.data() + at, bytes, round % 2 == 0 ? Order::ordered : Order::relaxed));
          at += bytes;
        }
        must(window.fence(1));
        must(window.signal(1, {0, 1}));
        must(window.wait_signal(0, Comparison::greater_equal, round));
      } else {
        must(window.wait_signal(0, Comparison::greater_equal, round));
        ASSERT_TRUE(holds(window, 0, sent)) << "round " << round;
        must(window.signal(0, {0, 1}));
      }
    }
    must(window.close());
  });
}

TEST(Direct, GetsAndEveryAtomicWork) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    constexpr std::size_t kBytes = 2 << 20;
    auto window = must(Window::allocate(world, kBytes));
    const auto mine = pattern(kBytes, static_cast<std::uint64_t>(world.rank()));
    std::copy(mine.begin(), mine.end(), window.local().begin());
    must(window.barrier());
    const auto theirs = pattern(kBytes, static_cast<std::uint64_t>(1 - world.rank()));
    std::vector<std::byte> got(kBytes);
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{64}, std::size_t{5001}, kBytes}) {
      std::fill(got.begin(), got.end(), std::byte{0});
      must(window.wait(must(window.get(1 - world.rank(), kBytes - bytes, got.data(), bytes))));
      EXPECT_EQ(std::memcmp(got.data(), theirs.data() + kBytes - bytes, bytes), 0) << bytes;
    }
    must(window.barrier());
    if (world.rank() == 0) {
      must(window.put_value<std::uint64_t>(1, 8, 0));
      every_fetching_form(window, 1, 8);
      EXPECT_EQ(world.statistics().direct_atomics, 9U);
    }
    EXPECT_EQ(world.statistics().direct_gets, 4U);
    must(window.barrier());
    must(window.close());
  });
}

TEST(Direct, ManyOriginsAddToOneSignal) {
  constexpr int kRanks = 4;
  run_processes(kRanks, [](World& world, ProcessRendezvous&) {
    constexpr std::uint64_t kPuts = 20'000;
    auto window = must(Window::allocate(world, 4096));
    must(window.barrier());  // all at once
    if (world.rank() != 0) {
      for (std::uint64_t i = 0; i < kPuts; ++i) {
        must(window.put_signal(0, static_cast<std::size_t>(world.rank()) * 64, &i, sizeof i, {5, 3}));
      }
    } else {
      must(window.wait_signal(5, Comparison::equal, 3 * kPuts * (kRanks - 1)));
      for (std::size_t rank = 1; rank < kRanks; ++rank) {
        std::uint64_t last = 0;
        std::memcpy(&last, window.local().data() + rank * 64, sizeof last);
        EXPECT_EQ(last, kPuts - 1);
      }
    }
    must(window.barrier());
    EXPECT_EQ(window.read_signal(5), world.rank() == 0 ? 3 * kPuts * (kRanks - 1) : 0U);
    must(window.close());
  });
}

/// Rank 3 comes over the rails, and rank 0's engine applies what it sends; the others use rank 0's memory themselves.
TEST(Direct, BothWaysMeetOnOneWord) {
  constexpr int kRanks = 4;
  run_processes(kRanks, all_but({3}), [](World& world, ProcessRendezvous&) {
    constexpr std::uint64_t kTimes = 5000;
    auto window = must(Window::allocate(world, 4096));
    must(window.barrier());
    if (world.rank() == 3) {
      EXPECT_EQ(world.statistics().direct_puts, 0U);
    }
    for (std::uint64_t i = 0; i < kTimes; ++i) {
      must(window.atomic<std::uint64_t>(0, 0, AtomicOp::add, 1));
      must(window.atomic<std::uint32_t>(0, 8, AtomicOp::increment, 0));
      must(window.atomic<std::uint32_t>(0, 12, AtomicOp::bit_xor, 1U << static_cast<unsigned>(world.rank())));
      must(window.signal(0, {1, 2}));
    }
    must(window.quiet());
    must(window.barrier());
    if (world.rank() == 0) {
      std::uint64_t sum = 0;
      std::array<std::uint32_t, 2> narrow{};
      std::memcpy(&sum, window.local().data(), 8);
      std::memcpy(narrow.data(), window.local().data() + 8, 8);
      EXPECT_EQ(sum, kRanks * kTimes);
      EXPECT_EQ(narrow[0], kRanks * kTimes);
      EXPECT_EQ(narrow[1], 0U);
      EXPECT_EQ(window.read_signal(1), 2 * kRanks * kTimes);
    }
    must(window.close());
  });
}

/// The adopted window's puts take the engine; the signal could overtake them, and must not.
TEST(Direct, ASignalStaysBehindAPutOfTheEngine) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    constexpr std::size_t kBytes = 2 << 20;
    std::vector<std::byte> memory(kBytes);
    auto adopted = must(Window::adopt(world, memory));
    auto window = must(Window::allocate(world, 4096));
    std::uint64_t word = 0;
    for (std::uint64_t round = 1; round <= 30; ++round) {
      const auto sent = pattern(kBytes, round);
      if (world.rank() == 0) {
        must(adopted.put(1, 0, sent.data(), kBytes));
        if (round % 3 == 0) {
          must(window.put_signal(1, 8, &round, sizeof round, {0, 1}));
        } else if (round % 3 == 1) {
          must(window.signal(1, {0, 1}));
        } else {
          must(window.fetch_atomic<std::uint64_t>(1, 0, AtomicOp::add, &word, 1));
        }
        must(window.wait_signal(0, Comparison::greater_equal, round));
        must(adopted.quiet());
      } else {
        const auto arrived = [&] {
          std::uint64_t added = 0;
          std::memcpy(&added, window.local().data(), 8);
          return window.read_signal(0) + added >= round;
        };
        while (!arrived()) world.progress();
        ASSERT_EQ(std::memcmp(memory.data(), sent.data(), kBytes), 0) << "round " << round;
        must(window.signal(0, {0, 1}));
      }
    }
    // Rank 0 has had something under way with every one of its signals, rank 1 never.
    EXPECT_EQ(world.statistics().direct_puts > 0, world.rank() == 1);
    must(window.close());
    must(adopted.close());
  });
}

/// Two ranks put to a third and look at what the other put there: one of them at least must see it.
TEST(Direct, AFenceKeepsAGetBehindAPut) {
  run_processes(3, [](World& world, ProcessRendezvous& rendezvous) {
    auto window = must(Window::allocate(world, 4096, {.signals = 8}));
    for (std::uint64_t round = 1; round <= 1000; ++round) {
      must(window.barrier());
      if (world.rank() != 2) {
        const auto mine = static_cast<std::size_t>(world.rank());
        must(window.put_value<std::uint64_t>(2, mine * 64, round));
        if (round % 2 == 0) {
          must(window.fence(2));
        } else {
          must(window.quiet());
        }
        std::uint64_t theirs = 0;
        must(window.wait(must(window.get(2, 64 - mine * 64, &theirs, sizeof theirs))));
        rendezvous.notes[mine].store(theirs);
      }
      must(window.barrier());
      if (world.rank() == 2) {
        ASSERT_EQ(std::max(rendezvous.notes[0].load(), rendezvous.notes[1].load()), round);
      }
    }
    must(window.close());
  });
}

TEST(Direct, SignalsInTheCallersMemoryGoThroughTheEngine) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    std::array<std::uint64_t, 4> signals{};
    WindowOptions options;
    options.signal_memory = signals;
    constexpr std::size_t kBytes = 100'000;
    auto window = must(Window::allocate(world, kBytes, options));
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const auto sent = pattern(kBytes, round);
      if (world.rank() == 0) {
        must(window.put(1, 0, sent.data(), kBytes / 2));
        must(window.put_signal(1, kBytes / 2, sent.data() + kBytes / 2, kBytes / 2, {1, 1}));
        must(window.wait_signal(2, Comparison::equal, round));
        must(window.quiet());
      } else {
        must(window.wait_signal(1, Comparison::equal, round));
        EXPECT_EQ(signals[1], round);
        ASSERT_TRUE(holds(window, 0, sent)) << "round " << round;
        must(window.signal(0, {2, 1}));
      }
    }
    must(window.barrier());
    must(window.close());
  });
}

/// Rank 0 waits for rank 1, which waits for rank 2, which comes over the rails and needs rank 0's engine first.
TEST(Direct, WhoWaitsForAStoreServesTheRailsMeanwhile) {
  run_processes(3, all_but({2}), [](World& world, ProcessRendezvous&) {
    auto window = must(Window::allocate(world, 1 << 20));
    const auto source = pattern(1 << 20, 1);
    for (std::uint64_t round = 1; round <= 20; ++round) {
      switch (world.rank()) {
        case 0:
          must(window.wait_signal(0, Comparison::greater_equal, round));
          break;
        case 1:
          must(window.wait_signal(1, Comparison::greater_equal, round));
          must(window.signal(0, {0, 1}));
          break;
        default:
          must(window.put(0, 0, source.data(), source.size()));
          must(window.quiet(0));
          must(window.signal(1, {1, 1}));
      }
    }
    must(window.barrier());
    must(window.close());
  });
}

TEST(Direct, BarriersHoldEveryoneBack) {
  constexpr int kRanks = 5;
  run_processes(kRanks, [](World& world, ProcessRendezvous& rendezvous) {
    auto window = must(Window::allocate(world, 64));
    for (std::uint64_t round = 1; round <= 200; ++round) {
      ++rendezvous.notes[0];
      must(window.barrier());
      ASSERT_GE(rendezvous.notes[0].load(), kRanks * round);
      must(window.barrier());
    }
    must(window.close());
  });
}

TEST(Direct, APeerThatIsKilledIsNamed) {
  run_processes(3,
                [](World& world, ProcessRendezvous& rendezvous) {
                  auto window = must(Window::allocate(world, 4096));
                  must(window.barrier());
                  const std::uint64_t value = 7;
                  if (world.rank() == 2) {
                    must(window.signal(0, {0, 1}));
                    must(window.signal(1, {0, 1}));
                    while (rendezvous.notes[0].load() < 2) world.progress();
                    ::raise(SIGKILL);
                  }
                  must(window.wait_signal(0, Comparison::equal, 1));
                  must(window.put(2, 0, &value, sizeof value));
                  EXPECT_GT(world.statistics().direct_puts, 0U);
                  ++rendezvous.notes[0];
                  // Puts alone: they make the passes in which the loss is noticed.
                  Result<void> told;
                  while (told.ok()) {
                    if (auto put = window.put(2, 0, &value, sizeof value); !put) told = std::move(put.error());
                  }
                  EXPECT_EQ(told.status(), Status::peer_lost) << told.error().text();
                  EXPECT_EQ(told.error().where().peer, 2);
                  std::uint64_t was = 0;
                  EXPECT_EQ(window.get(2, 0, &was, sizeof was).status(), Status::peer_lost);
                  EXPECT_EQ(window.fetch_atomic<std::uint64_t>(2, 0, AtomicOp::add, &was, 1).status(),
                            Status::peer_lost);
                  EXPECT_EQ(window.signal(2, {0, 1}).status(), Status::peer_lost);
                  EXPECT_EQ(window.barrier().status(), Status::peer_lost);
                  // The other one is as it was.
                  const int other = 1 - world.rank();
                  must(window.put_signal(other, 0, &value, sizeof value, {1, 1}));
                  must(window.wait_signal(1, Comparison::equal, 1));
                  must(window.quiet());
                  must(window.signal(other, {2, 1}));
                  must(window.wait_signal(2, Comparison::equal, 1));
                },
                {2});
}

TEST(Direct, ARankThatLeavesInPeaceIsNotLost) {
  run_processes(2, [](World& world, ProcessRendezvous& rendezvous) {
    auto window = must(Window::allocate(world, 4096));
    if (world.rank() == 0) {
      must(window.signal(1, {0, 1}));
    } else {
      must(window.wait_signal(0, Comparison::equal, 1));
    }
    must(window.close());
    if (world.rank() == 1) return;  // its world goes
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    while (std::chrono::steady_clock::now() < until) world.progress();
    EXPECT_EQ(world.statistics().peers_lost, 0U);
    rendezvous.notes[0] = 1;
  });
}

/// Not the bells of peers: each is opened when its peer is first found asleep, and stays.
std::size_t descriptors() {
  std::size_t count = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(each, gone).string();
    if (target.find(".bell") == std::string::npos) ++count;
  }
  return count;
}
std::size_t heaps() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("railyard heap") != std::string::npos) ++count;
  }
  return count;
}

TEST(Direct, NothingIsLeftOfAWindow) {
  run_processes(3, [](World& world, ProcessRendezvous&) {
    {
      // What peers cost is there once.
      auto window = must(Window::allocate(world, 4096));
      for (int rank = 0; rank < world.size(); ++rank) must(window.signal(rank, {0, 1}));
      must(window.wait_signal(0, Comparison::equal, 3));
      must(window.barrier());
      must(window.close());
    }
    must(world.barrier());
    EXPECT_EQ(heaps(), 0U);
    // On a busy machine peers' links to this process may take a while to stand.
    std::size_t before = descriptors();
    for (int i = 0; i < 50; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const std::size_t seen = std::exchange(before, descriptors());
      if (seen == before) break;
    }
    must(world.barrier());
    for (int i = 0; i < 20; ++i) {
      auto window = must(Window::allocate(world, 100'000));
      EXPECT_EQ(heaps(), 3U);
      EXPECT_EQ(descriptors(), before + 1);
      must(window.signal((world.rank() + 1) % 3, {0, 1}));
      must(window.wait_signal(0, Comparison::equal, 1));
      if (i % 2 == 0) must(window.close());
      must(world.barrier());
    }
    EXPECT_EQ(heaps(), 0U);
    EXPECT_EQ(descriptors(), before);
    must(world.barrier());
  });
}

TEST(Direct, OffMeansOff) {
  for (const std::set<int>& off : {std::set<int>{0, 1}, std::set<int>{0}}) {
    run_processes(2, all_but(off), [](World& world, ProcessRendezvous&) {
      auto window = must(Window::allocate(world, 4096));
      const std::uint64_t value = 3;
      must(window.put_signal(1 - world.rank(), 0, &value, sizeof value, {0, 1}));
      must(window.wait_signal(0, Comparison::equal, 1));
      EXPECT_TRUE(holds(window, 0, std::as_bytes(std::span(&value, 1))));
      must(window.barrier());
      EXPECT_EQ(world.statistics().direct_puts, 0U);
      EXPECT_EQ(world.settings().shared_memory == "off" ? heaps() : 1U,
                world.settings().shared_memory == "off" ? 0U : 1U);
      must(window.close());
    });
  }
}

TEST(Direct, WithoutAHeapTheRailsCarryEverything) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    if (world.rank() == 1) {
      const rlimit limit{4096, 4096};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    constexpr std::size_t kBytes = 100'000;
    auto window = must(Window::allocate(world, kBytes));
    const auto sent = pattern(kBytes, 5);
    must(window.put_signal(1 - world.rank(), 0, sent.data(), kBytes, {0, 1}));
    must(window.wait_signal(0, Comparison::equal, 1));
    EXPECT_TRUE(holds(window, 0, sent));
    must(window.barrier());
    EXPECT_EQ(world.statistics().direct_puts > 0, world.rank() == 1) << "rank 0's heap is there";
    must(window.close());
  });
}

/// Where the fields of a heap's name lie in a contribution, counted from the name of the machine.
struct Lie {
  const char* what;
  std::ptrdiff_t field;
};

std::string machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string name;
  std::getline(file, name);
  return name;
}

TEST(Direct, WhoeverLiesAboutItsHeapIsReachedByTheRails) {
  constexpr std::ptrdiff_t kText = 36;
  // Of the pid it is the highest byte: a number nearby may be that of a thread of the owner, which is no lie.
  for (const Lie lie :
       {Lie{"machine", 0}, Lie{"process space", kText}, Lie{"pid", kText + 11}, Lie{"fd", kText + 12},
        Lie{"device", kText + 16}, Lie{"inode", kText + 24}, Lie{"bytes", kText + 33}, Lie{"identity", kText + 40}}) {
    SCOPED_TRACE(lie.what);
    run_processes(2, [&](World& world, ProcessRendezvous& rendezvous) {
      constexpr std::size_t kBytes = 50'000;
      auto assembly = WindowAssembly::begin(world, kBytes, {});
      auto mine = assembly.contribution();
      if (world.rank() == 1) {
        const std::string name = machine();
        const auto bytes = std::as_bytes(std::span(name.data(), name.size()));
        const auto at = std::search(mine.begin(), mine.end(), bytes.begin(), bytes.end());
        ASSERT_NE(at, mine.end());
        at[lie.field] ^= std::byte{1};
      }
      auto all = must(rendezvous.meet(world.rank(), world.size(), mine, {}));
      auto window = must(assembly.finish(all));
      const auto sent = pattern(kBytes, 5);
      must(window.put_signal(1 - world.rank(), 0, sent.data(), kBytes, {0, 1}));
      must(window.wait_signal(0, Comparison::equal, 1));
      EXPECT_TRUE(holds(window, 0, sent));
      must(window.barrier());
      EXPECT_EQ(world.statistics().direct_puts > 0, world.rank() == 1) << "it is only rank 0 that cannot";
      must(window.close());
    });
  }
}

/// The heap is the right one, but too short for the window that its owner claims.
TEST(Direct, AHeapShorterThanItsWindowIsNotUsed) {
  run_processes(2, [](World& world, ProcessRendezvous& rendezvous) {
    WindowOptions options;
    options.per_rank = true;
    auto assembly = WindowAssembly::begin(world, 4096, options);
    auto mine = assembly.contribution();
    if (world.rank() == 1) {
      // After the magic number and the empty refusal: the window's bytes.
      constexpr std::array<std::byte, 8> kHuge{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0},
                                               std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0x80}};
      std::copy(kHuge.begin(), kHuge.end(), mine.begin() + 8);
    }
    auto all = must(rendezvous.meet(world.rank(), world.size(), mine, {}));
    auto window = must(assembly.finish(all));
    const std::uint64_t value = 3;
    must(window.put_signal(1 - world.rank(), 0, &value, sizeof value, {0, 1}));
    must(window.wait_signal(0, Comparison::equal, 1));
    must(window.barrier());
    if (world.rank() == 0) {
      EXPECT_EQ(world.statistics().direct_puts, 0U);
    }
    must(window.close());
  });
}

}  // namespace
}  // namespace railyard
