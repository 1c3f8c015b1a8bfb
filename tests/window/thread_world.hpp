/// Several ranks as threads of one test process, over real rails (tests/rails.hpp), met through a bootstrap that the
/// test passes in.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "rails.hpp"
#include "railyard/window.hpp"

namespace railyard {

/// Where the threads meet.
class ThreadRendezvous {
 public:
  explicit ThreadRendezvous(int size) : size_(size), contributions_(static_cast<std::size_t>(size)) {}

  std::vector<std::vector<std::byte>> meet(int rank, std::span<const std::byte> mine) {
    std::unique_lock lock(mutex_);
    contributions_[static_cast<std::size_t>(rank)].assign(mine.begin(), mine.end());
    const std::uint64_t round = round_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      result_ = contributions_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round; });
    }
    return result_;
  }
  int size() const { return size_; }

 private:
  int size_;
  int arrived_ = 0;
  std::uint64_t round_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::byte>> contributions_;
  std::vector<std::vector<std::byte>> result_;
};

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(ThreadRendezvous& rendezvous, int rank) : rendezvous_(rendezvous), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return rendezvous_.size(); }
  Result<std::vector<std::vector<std::byte>>> allgather(std::span<const std::byte> mine, Deadline) override {
    return rendezvous_.meet(rank_, mine);
  }
  Result<void> barrier(Deadline) override {
    rendezvous_.meet(rank_, {});
    return {};
  }
  std::string describe() const override { return "threads of one process"; }

 private:
  ThreadRendezvous& rendezvous_;
  int rank_;
};

/// Everything goes over the rails.
inline Settings loopback_settings(std::uint32_t rails) {
  Settings settings = test_rails(rails);
  settings.shared_memory = "off";
  settings.timeout_ms *= 2;
  return settings;
}

/// Runs `body(world)` as every rank of a world of `size`.
inline void run_ranks(int size, const Settings& settings, const std::function<void(World&)>& body) {
  ThreadRendezvous rendezvous(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      ThreadBootstrap bootstrap(rendezvous, rank);
      WorldOptions options;
      options.settings = &settings;
      options.bootstrap = &bootstrap;
      auto world = World::open(options);
      ASSERT_TRUE(world) << world.error().text();
      body(*world);
    });
  }
  for (auto& rank : ranks) rank.join();
}

/// Unwraps, failing the test with the error's text.
template <typename T>
T must(Result<T> result) {
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().text());
  return std::move(result).value();
}
inline void must(Result<void> result) { EXPECT_TRUE(result.ok()) << result.error().text(); }

/// On the word at `offset` of `rank`'s window, which holds 0: each form, nine in all, returns what was there.
inline void every_fetching_form(Window& window, int rank, std::size_t offset) {
  const auto fetch = [&](AtomicOp op, std::uint64_t operand, std::uint64_t compare = 0) {
    std::uint64_t was = ~std::uint64_t{0};
    must(window.wait(must(window.fetch_atomic<std::uint64_t>(rank, offset, op, &was, operand, compare))));
    return was;
  };
  EXPECT_EQ(fetch(AtomicOp::set, 12), 0U);
  EXPECT_EQ(fetch(AtomicOp::bit_or, 3), 12U);
  EXPECT_EQ(fetch(AtomicOp::bit_and, 14), 15U);
  EXPECT_EQ(fetch(AtomicOp::bit_xor, 1), 14U);
  EXPECT_EQ(fetch(AtomicOp::swap, 100), 15U);
  EXPECT_EQ(fetch(AtomicOp::compare_swap, 7, 99), 100U);
  EXPECT_EQ(fetch(AtomicOp::compare_swap, 7, 100), 100U);
  EXPECT_EQ(fetch(AtomicOp::increment, 0), 7U);
  EXPECT_EQ(fetch(AtomicOp::fetch, 0), 8U);
}

}  // namespace railyard
