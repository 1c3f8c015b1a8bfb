/// Sleepers: how many threads of a process sleep in waits for words that others change past its engine. It lies where
/// those others can read it: in memory that peers have mapped, beside the words.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/store_barrier.hpp"

namespace railyard::transport {

class Sleepers {
 public:
  /// By one who is about to sleep, before its last look at the words. Whoever changes one after that look sees it.
  void enter() {
    count_.fetch_add(1, std::memory_order_seq_cst);
    wait_for_stores_of_others();
  }
  void leave() { count_.fetch_sub(1, std::memory_order_relaxed); }
  /// By one who has just changed a word. No fence: `enter` makes up for it.
  bool any() const {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return count_.load(std::memory_order_relaxed) != 0;
  }

 private:
  std::atomic<std::uint32_t> count_{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace railyard::transport
