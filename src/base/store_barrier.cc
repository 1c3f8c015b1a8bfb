#include "base/store_barrier.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace railyard {
namespace {

constexpr long kStoresLand = 50'000;  // nanoseconds

}  // namespace

void allow_waiting_for_stores() { ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0); }

void wait_for_stores_of_others() {
  static const bool possible = ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  if (possible && ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0) return;
  // A kernel that cannot: no store waits so long in its core. What is missed nevertheless is found when the sleep ends.
  const timespec moment{0, kStoresLand};
  ::nanosleep(&moment, nullptr);
}

}  // namespace railyard
