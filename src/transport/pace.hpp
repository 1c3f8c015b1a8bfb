/// Pace: how a thread that works on peers' memory by itself shares its time with the engine. A pass over the rails
/// takes many times as long as a look at a word that a peer may have stored to; but without passes nobody would notice
/// that a peer is gone, or answer those that come over the rails.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/cpu_pause.hpp"

namespace railyard::transport {

/// One for each thread. Atomics only because threads beyond the first few share one: what they spoil is a pass sooner
/// or later.
class Pace {
 public:
  /// Looks between two passes: few while the rails have news, more with every pass that finds none.
  static constexpr std::uint32_t kLeast = 16;
  static constexpr std::uint32_t kMost = 2048;

  /// Takes off so much work; true: a pass is due.
  [[gnu::always_inline]] bool spend(std::uint32_t work) {
    const std::uint32_t left = left_.load(std::memory_order_relaxed);
    if (left <= work) return true;
    left_.store(left - work, std::memory_order_relaxed);
    return false;
  }
  /// Looks until it is done, which it says, or a pass is due.
  template <typename Done>
  [[gnu::always_inline]] bool spin(Done&& done) {
    for (; !spend(1); cpu_pause())
      if (done()) return true;
    return false;
  }
  void passed(bool news) {
    const std::uint32_t next = news ? kLeast : std::min(2 * interval_.load(std::memory_order_relaxed), kMost);
    interval_.store(next, std::memory_order_relaxed);
    left_.store(next, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint32_t> left_{kLeast};
  std::atomic<std::uint32_t> interval_{kLeast};
};

}  // namespace railyard::transport
