/// Progress lock: the right to touch the engine. Whoever holds it may submit and make progress; waiters only try.
#pragma once

#include <atomic>
#include <mutex>

#include "base/cpu_pause.hpp"

namespace railyard::transport {

class ProgressLock {
 public:
  /// `shared` false: one thread only, every call is free.
  explicit ProgressLock(bool shared) : shared_(shared) {}

  bool try_take() {
    // Acquire: pairs with `give`; the taker sees all engine state the last holder wrote.
    // A look first: who only tries does not take the line away from the holder.
    return !shared_ || (!held_.test(std::memory_order_relaxed) && !held_.test_and_set(std::memory_order_acquire));
  }
  void take() {
    if (!shared_) return;
    while (held_.test_and_set(std::memory_order_acquire)) pause();
  }
  void give() {
    if (shared_) held_.clear(std::memory_order_release);
  }

 private:
  /// Spins on a read, then lets the holder have the core: passes are short, but the holder may be off it.
  void pause() {
    for (int spin = 0; spin < 64; ++spin) {
      if (!held_.test(std::memory_order_relaxed)) return;
      cpu_pause();
    }
    yield();
  }
  static void yield();

  const bool shared_;
  std::atomic_flag held_;
};

class ProgressGuard {
 public:
  explicit ProgressGuard(ProgressLock& progress_lock) : progress_lock_(progress_lock) { progress_lock_.take(); }
  /// It is taken already.
  ProgressGuard(ProgressLock& progress_lock, std::adopt_lock_t /*taken*/) : progress_lock_(progress_lock) {}
  ~ProgressGuard() { progress_lock_.give(); }
  ProgressGuard(const ProgressGuard&) = delete;
  ProgressGuard& operator=(const ProgressGuard&) = delete;

 private:
  ProgressLock& progress_lock_;
};

}  // namespace railyard::transport
