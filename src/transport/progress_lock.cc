#include "transport/progress_lock.hpp"

#include <thread>

namespace railyard::transport {

void ProgressLock::yield() { std::this_thread::yield(); }

}  // namespace railyard::transport
