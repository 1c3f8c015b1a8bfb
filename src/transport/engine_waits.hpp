/// Waits for what passes bring: part of engine.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "transport/engine.hpp"

namespace railyard::transport {

template <typename Done>
bool Engine::wait_until(Done&& done, std::int64_t nanoseconds, Sleepers* sleepers) {
  if (done()) return true;
  constexpr std::uint32_t kPassesPerLook = 16;
  const std::int64_t start = core_.clock->now();
  std::int64_t news = start;
  bool moved = false;
  bool insist = false;
  for (std::uint32_t pass = 1;; ++pass) {
    if (core_.progress_lock.try_take()) {
      moved |= progress();
      core_.progress_lock.give();
    }
    if (done()) return true;
    // The clock is read now and then only: a pass that finds nothing is short.
    if (pass % kPassesPerLook != 0) continue;
    const std::int64_t now = core_.clock->now();
    if (now - start >= nanoseconds) return false;
    if (std::exchange(moved, false)) news = now;
    if (now - news < Waiting::kSpinNanoseconds) continue;
    // One pass between two sleeps.
    if (!core_.waiting.rest(now - news, nanoseconds - (now - start), insist, sleepers, std::ref(done))) continue;
    if (done()) return true;
    pass = kPassesPerLook - 1;
  }
}

template <typename Done, typename Woken>
bool Engine::wait_for_word(Done&& done, std::int64_t nanoseconds, Pace& pace, Sleepers* sleepers, Woken&& woken) {
  // Time counts from the first pass: most waits are over before it.
  std::int64_t start = -1;
  std::int64_t news = 0;
  bool rested = false;
  bool insist = false;
  for (;;) {
    if (rested ? done() : pace.spin(done)) return true;
    const std::int64_t now = core_.clock->now();
    if (start < 0) start = news = now;
    const bool moved = now - start < Waiting::kSpinNanoseconds ? pass_unattended(pace) : pass(pace);
    if (done()) return true;
    if (now - start >= nanoseconds) return false;
    if (moved) news = now;
    rested = now - news >= Waiting::kSpinNanoseconds &&
             core_.waiting.rest(now - news, nanoseconds - (now - start), insist, sleepers, std::ref(done));
    if (rested) woken();
  }
}

}  // namespace railyard::transport
