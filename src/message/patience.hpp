/// Patience: how long ends may wait, in all, for peers to let go of memory by themselves. Whoever ends at the same time
/// shares it, on whatever engine and context: any number of peers that do not answer costs it once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace railyard::message {

/// Any thread. Relaxed: two that end at the same moment may both wait, side by side.
class Patience {
 public:
  /// What is left of `most`, in nanoseconds.
  std::int64_t left(std::int64_t now, std::int64_t most) {
    if (now - spent_at_.load(std::memory_order_relaxed) >= kCalm) spent_.store(0, std::memory_order_relaxed);
    return std::max<std::int64_t>(std::min(most, kMost) - spent_.load(std::memory_order_relaxed), 0);
  }
  /// Somebody has waited in vain for so long.
  void spend(std::int64_t now, std::int64_t nanoseconds) {
    spent_.fetch_add(nanoseconds, std::memory_order_relaxed);
    spent_at_.store(now, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kMost = 1'000'000'000;
  static constexpr std::int64_t kCalm = 10'000'000'000;  ///< without a wait in vain: there is all of it again

  std::atomic<std::int64_t> spent_{0};
  std::atomic<std::int64_t> spent_at_{INT64_MIN / 2};
};

}  // namespace railyard::message
