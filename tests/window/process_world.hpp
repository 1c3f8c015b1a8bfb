/// Several ranks as processes of their own, forked by the test, over real rails (tests/rails.hpp).
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <set>
#include <vector>

#include "thread_world.hpp"

namespace railyard {

/// Where the processes meet: memory that the test shares with its children.
class ProcessRendezvous {
 public:
  static constexpr int kMostRanks = 8;
  static constexpr std::size_t kMostBytes = 32768;

  static ProcessRendezvous* make() {
    void* memory =
        ::mmap(nullptr, sizeof(ProcessRendezvous), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) ProcessRendezvous;
  }

  Result<std::vector<std::vector<std::byte>>> meet(int rank, int size, std::span<const std::byte> mine,
                                                   Deadline deadline) {
    const std::uint32_t round = round_.load();
    auto& slots = slots_[round % 2];  // the last round's may still be being read
    Slot& place = slots[static_cast<std::size_t>(rank)];
    if (mine.size() > kMostBytes) return Error(Status::out_of_range, "a contribution too long for the test");
    std::copy(mine.begin(), mine.end(), place.bytes.begin());
    place.used = mine.size();
    // A rank that comes again after its time ran out is there once.
    const std::uint32_t all_ranks = (1U << static_cast<unsigned>(size)) - 1;
    const std::uint32_t here = 1U << static_cast<unsigned>(rank);
    const std::uint32_t before = arrived_.fetch_or(here);
    if (before != all_ranks && (before | here) == all_ranks) {
      arrived_ = 0;
      ++round_;
    }
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(deadline.nanoseconds(60'000'000'000));
    while (round_.load() == round) {
      if (std::chrono::steady_clock::now() > until) return Error(Status::timeout, "the others did not come");
      ::sched_yield();
    }
    std::vector<std::vector<std::byte>> all;
    for (int i = 0; i < size; ++i) {
      const Slot& theirs = slots[static_cast<std::size_t>(i)];
      all.emplace_back(theirs.bytes.begin(), theirs.bytes.begin() + static_cast<std::ptrdiff_t>(theirs.used));
    }
    return all;
  }

  std::array<std::atomic<std::uint64_t>, 8> notes{};  ///< for the test's own use; zero at the start

 private:
  struct Slot {
    std::size_t used = 0;
    std::array<std::byte, kMostBytes> bytes{};
  };
  std::atomic<std::uint32_t> arrived_{0};  ///< a bit for each rank
  std::atomic<std::uint32_t> round_{0};
  std::array<std::array<Slot, kMostRanks>, 2> slots_{};
};

class ProcessBootstrap final : public Bootstrap {
 public:
  ProcessBootstrap(ProcessRendezvous& place, int rank, int size) : rendezvous_(place), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline deadline) override {
    return rendezvous_.meet(rank_, size_, mine, deadline);
  }
  Result<void> barrier(Deadline deadline) override {
    auto met = rendezvous_.meet(rank_, size_, {}, deadline);
    return met ? Result<void>() : Result<void>(std::move(met.error()));
  }
  std::string describe() const override { return "processes forked by a test"; }

 private:
  ProcessRendezvous& rendezvous_;
  int rank_;
  int size_;
};

/// Runs `body` as every rank, each in a process of its own; settings by rank. `killed`: ranks that do not end by
/// themselves.
inline void run_processes(int size, const std::function<Settings(int)>& settings,
                          const std::function<void(World&, ProcessRendezvous&)>& body,
                          const std::set<int>& killed = {}) {
  ProcessRendezvous* rendezvous = ProcessRendezvous::make();
  ASSERT_NE(rendezvous, nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ProcessBootstrap bootstrap(*rendezvous, rank, size);
      const Settings mine = settings(rank);
      WorldOptions options;
      options.settings = &mine;
      options.bootstrap = &bootstrap;
      {
        auto world = World::open(options);
        EXPECT_TRUE(world) << world.error().text();
        if (world) body(*world, *rendezvous);
      }
      ::fflush(nullptr);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    ASSERT_EQ(::waitpid(children[static_cast<std::size_t>(rank)], &status, 0),
              children[static_cast<std::size_t>(rank)]);
    if (killed.contains(rank)) {
      EXPECT_TRUE(WIFSIGNALED(status)) << "rank " << rank;
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": status " << status;
    }
  }
  ::munmap(rendezvous, sizeof *rendezvous);
}

/// Peers' windows are mapped where they can be.
inline Settings direct_settings(int /*rank*/ = 0) {
  Settings settings = loopback_settings(1);
  settings.shared_memory = "on";
  return settings;
}

inline void run_processes(int size, const std::function<void(World&, ProcessRendezvous&)>& body,
                          const std::set<int>& killed = {}) {
  run_processes(size, direct_settings, body, killed);
}

}  // namespace railyard
