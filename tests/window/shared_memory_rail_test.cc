/// Windows over memory that the program brings, between ranks of one host: nobody can map it, so the rail through
/// shared memory carries everything.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/fd.hpp"
#include "base/random.hpp"
#include "process_world.hpp"
#include "shm/layout.hpp"

namespace railyard {
namespace {

constexpr std::size_t kMost = 8 << 20;

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  Random random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.next());
  return made;
}

/// What the network's rails have carried: nothing, if all went through shared memory.
std::uint64_t sent_elsewhere(const World& world) {
  const WorldStatistics statistics = world.statistics();
  EXPECT_EQ(statistics.rails.back().name, "shared memory");
  return std::accumulate(
      statistics.rails.begin(), statistics.rails.end() - 1, std::uint64_t{0},
      [](std::uint64_t sum, const RailStatistics& rail) { return sum + rail.bytes_sent + rail.links; });
}

bool has_object_of(pid_t process) {
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (!entry.path().filename().string().starts_with("railyard-")) continue;
    const Fd file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    shm::ObjectHeader header;
    const bool whole = file && ::pread(file.get(), static_cast<void*>(&header), sizeof header, 0) == sizeof header;
    if (whole && header.magic == shm::kMagic && header.pid == process) return true;
  }
  return false;
}

TEST(SharedMemoryRail, EveryByteIsThereAtItsSignal) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    std::vector<std::byte> memory(kMost);
    auto window = must(Window::adopt(world, memory));
    const int other = 1 - world.rank();
    Random random(5);
    std::vector<std::size_t> sizes{1,    7,    8,     64,     1000,   1024,    1025, 4096,
                                   8192, 8193, 65536, 262143, 262144, 1 << 20, kMost};
    for (int i = 0; i < 100; ++i) sizes.push_back(1 + random.below(300'000));
    std::uint64_t round = 0;
    for (const std::size_t bytes : sizes) {
      ++round;
      const std::size_t offset = random.below(kMost - bytes + 1);
      // Both at once: each rank sends and is sent to.
      const auto mine = pattern(bytes, 2 * round + static_cast<std::uint64_t>(world.rank()));
      const auto theirs = pattern(bytes, 2 * round + static_cast<std::uint64_t>(other));
      must(window.put_signal(other, offset, mine.data(), bytes, {3, 1}));
      must(window.wait_signal(3, Comparison::greater_equal, round));
      ASSERT_TRUE(std::equal(theirs.begin(), theirs.end(), memory.begin() + static_cast<std::ptrdiff_t>(offset)))
          << bytes << " bytes at " << offset;
      must(window.barrier());
    }
    EXPECT_EQ(sent_elsewhere(world), 0U);
    EXPECT_GT(world.statistics().rails.back().bytes_received, kMost);
    must(window.close());
  });
}

TEST(SharedMemoryRail, GetsAndAtomicsReachTheOwnersMemory) {
  run_processes(2, [](World& world, ProcessRendezvous&) {
    alignas(64) static std::array<std::byte, kMost> memory;
    auto window = must(Window::adopt(world, memory));
    const int other = 1 - world.rank();
    const auto mine = pattern(kMost - 64, 100 + static_cast<std::uint64_t>(world.rank()));
    std::copy(mine.begin(), mine.end(), memory.begin() + 64);
    must(window.barrier());
    const auto theirs = pattern(kMost - 64, 100 + static_cast<std::uint64_t>(other));
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{5000}, std::size_t{100'000},
                                    std::size_t{1} << 20, kMost - 64}) {
      std::vector<std::byte> got(bytes);
      must(window.wait(must(window.get(other, 64, got.data(), bytes))));
      EXPECT_TRUE(std::equal(got.begin(), got.end(), theirs.begin())) << bytes;
    }
    constexpr std::uint64_t kAdds = 2000;
    std::uint64_t last = 0;
    for (std::uint64_t i = 0; i < kAdds; ++i) {
      std::uint64_t before = 0;
      must(window.wait(must(window.fetch_atomic<std::uint64_t>(other, 0, AtomicOp::add, &before, 2))));
      if (i > 0) {
        EXPECT_EQ(before, last + 2);
      }
      last = before;
    }
    must(window.barrier());
    std::uint64_t sum = 0;
    std::memcpy(&sum, memory.data(), sizeof sum);
    EXPECT_EQ(sum, 2 * kAdds);
    EXPECT_EQ(sent_elsewhere(world), 0U);
    must(window.close());
  });
}

TEST(SharedMemoryRail, ManyRanksMeetAllToAll) {
  run_processes(6, [](World& world, ProcessRendezvous&) {
    constexpr std::size_t kEach = 100'000;
    std::vector<std::byte> memory(kEach * 6);
    auto window = must(Window::adopt(world, memory));
    const auto me = static_cast<std::size_t>(world.rank());
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const auto mine = pattern(kEach, round * 10 + me);
      for (int peer = 0; peer < world.size(); ++peer)
        must(window.put_signal(peer, me * kEach, mine.data(), kEach, {me, 1}));
      for (std::size_t from = 0; from < 6; ++from) {
        must(window.wait_signal(from, Comparison::greater_equal, round));
        const auto theirs = pattern(kEach, round * 10 + from);
        ASSERT_TRUE(
            std::equal(theirs.begin(), theirs.end(), memory.begin() + static_cast<std::ptrdiff_t>(from * kEach)));
      }
      must(window.barrier());
    }
    EXPECT_EQ(sent_elsewhere(world), 0U);
    must(window.close());
  });
}

TEST(SharedMemoryRail, AKilledPeerIsNamedAndLeavesNothing) {
  run_processes(3,
                [](World& world, ProcessRendezvous& rendezvous) {
                  std::vector<std::byte> memory(kMost);
                  auto window = must(Window::adopt(world, memory));
                  const auto mine = pattern(kMost, 1);
                  if (world.rank() == 1) {
                    rendezvous.notes[0] = static_cast<std::uint64_t>(::getpid());
                    for (int i = 0; i < 5; ++i) must(window.put_signal(0, 0, mine.data(), 1 << 20, {0, 1}));
                    ::kill(::getpid(), SIGKILL);
                  }
                  if (world.rank() == 0) {
                    // It may die before or after it has taken any of this.
                    Result<void> quiet;
                    for (int i = 0; i < 1000 && quiet; ++i) {
                      auto put = window.put_signal(1, 0, mine.data(), 1 << 20, {0, 1});
                      quiet = put ? window.quiet(1) : Result<void>(std::move(put.error()));
                    }
                    ASSERT_FALSE(quiet.ok());
                    EXPECT_EQ(quiet.status(), Status::peer_lost);
                    EXPECT_NE(quiet.error().text().find("rank 1"), std::string::npos) << quiet.error().text();
                    const auto victim = static_cast<pid_t>(rendezvous.notes[0].load());
                    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
                    while (has_object_of(victim) && std::chrono::steady_clock::now() < give_up) world.progress();
                    EXPECT_FALSE(has_object_of(victim));
                  }
                  // The others go on.
                  const int other = 2 - world.rank();
                  must(window.put_signal(other, 0, mine.data(), 1 << 20, {7, 1}));
                  must(window.wait_signal(7, Comparison::greater_equal, 1));
                  ASSERT_TRUE(std::equal(mine.begin(), mine.begin() + (1 << 20), memory.begin()));
                  must(window.quiet(other));
                },
                {1});
}

TEST(SharedMemoryRail, IsNotUsedWithARankThatHasItOff) {
  const auto settings = [](int rank) {
    Settings made = direct_settings();
    if (rank == 1) made.shared_memory = "off";
    return made;
  };
  run_processes(2, settings, [](World& world, ProcessRendezvous&) {
    std::vector<std::byte> memory(1 << 20);
    auto window = must(Window::adopt(world, memory));
    const int other = 1 - world.rank();
    const auto mine = pattern(memory.size(), static_cast<std::uint64_t>(world.rank()));
    const auto theirs = pattern(memory.size(), static_cast<std::uint64_t>(other));
    must(window.put_signal(other, 0, mine.data(), mine.size(), {0, 1}));
    must(window.wait_signal(0, Comparison::greater_equal, 1));
    EXPECT_TRUE(std::equal(theirs.begin(), theirs.end(), memory.begin()));
    must(window.quiet());
    EXPECT_GE(world.statistics().rails.front().bytes_sent, memory.size());
    must(window.close());
  });
}

}  // namespace
}  // namespace railyard
