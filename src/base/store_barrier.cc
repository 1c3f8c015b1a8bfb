#include "base/store_barrier.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace railyard {
namespace {

constexpr long kStoresLand = 50'000;  // nanoseconds

/// Whether this kernel can do it. No guarded static: the thread sanitizer does not see the guard of a plugin that
/// brings its own C++ runtime. Relaxed: the answer is the same whoever asks.
bool may_ask_kernel() {
  static constinit std::atomic<int> known{-1};
  int answer = known.load(std::memory_order_relaxed);
  if (answer < 0) {
    answer = ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 ? 1 : 0;
    known.store(answer, std::memory_order_relaxed);
  }
  return answer != 0;
}

}  // namespace

void allow_waiting_for_stores() { ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0); }

void wait_for_stores_of_others() {
  if (may_ask_kernel() && ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0) return;
  // A kernel that cannot: no store waits so long in its core. What is missed nevertheless is found when the sleep ends.
  const timespec moment{0, kStoresLand};
  ::nanosleep(&moment, nullptr);
}

}  // namespace railyard
