/// Distance: which stores bring a message of a few KiB to a peer's core soonest. A line that is dirty in our cache is
/// slow to fetch for a far core; one that went past the cache costs a near one more. The distance shows in what plain
/// stores cost, since their lines must come from the peer's cache first. It can change while a program runs (threads
/// move), so some copies are timed, and even with far cores one in many is plain. docs/shm.md has the figures.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/copy.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace railyard::shm {

/// A line that costs more comes from far away.
inline constexpr std::uint32_t kFarCycles = 60;

/// The cycles that a line costs, after one more copy was timed. One copy that an interrupt came into does not make a
/// near peer (up to 15 cycles) a far one: so much of it does not count.
constexpr std::uint32_t after_timing(std::uint32_t cycles_per_line, std::uint64_t timed) {
  constexpr std::uint64_t kMost = 2 * kFarCycles - 15;
  return static_cast<std::uint32_t>((cycles_per_line + std::min(timed, kMost)) / 2);
}

/// One for each peer; any thread may copy. What two threads spoil for each other is one guess.
class Distance {
 public:
  /// The areas do not overlap.
  [[gnu::always_inline]] void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes < kLeastPast) return copy_bytes(to, from, bytes);
    copy_long(to, from, bytes);
  }

 private:
  static constexpr std::size_t kLeastPast = 1024;  ///< shorter ones are always plain

  void copy_long(std::byte* to, const std::byte* from, std::size_t bytes);
  void copy_timed(std::byte* to, const std::byte* from, std::size_t bytes);
  bool is_far() const;

  std::atomic<std::uint32_t> copies_{0};
  std::atomic<std::uint32_t> cycles_per_line_{0};  ///< smoothed
};

}  // namespace railyard::shm
