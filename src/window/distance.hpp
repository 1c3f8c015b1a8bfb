/// Distance: which stores bring a message of a few KiB to a peer's core soonest. A line that is dirty in our cache is
/// slow to fetch for a far core; one that went past the cache costs a near one more. The distance shows in what plain
/// stores cost, since their lines must come from the peer's cache first. It can change while a program runs (threads
/// move), so some copies are timed, and even with far cores one in many is plain. docs/shm.md has the figures.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "fabric/shm/copy.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace railyard::window_detail {

/// One for each peer; any thread may copy. What two threads spoil for each other is one guess.
class Distance {
 public:
  /// The areas do not overlap.
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes < kLeastPast) return fabric::shm::copy_bytes(to, from, bytes);
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

}  // namespace railyard::window_detail
