/// Handshakes: peers whose memory this process uses past the engine, and which may not know of it yet. One that does
/// says goodbye when it leaves; of one that does not, only the end of its links would be seen, and a rank that left in
/// peace would pass for a lost one. So each is asked once; no answer means nothing: the peer may be busy.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "transport/flow.hpp"

namespace railyard::transport {

class Handshakes {
 public:
  /// The longest that anybody waits for them.
  static constexpr std::int64_t kLongest = 1'000'000'000;

  /// The flow's peer must know of us before we leave.
  void begin() { pending_.fetch_add(1, std::memory_order_relaxed); }
  /// The peer has answered, or never will.
  void finish(Route& route) {
    if (std::exchange(route.handshake_done, true)) return;
    // Release: whoever sees that there are no more may leave.
    if (used_directly(route)) pending_.fetch_sub(1, std::memory_order_release);
  }
  /// Those that are not over: any thread.
  std::uint32_t pending() const { return pending_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint32_t> pending_{0};
};

}  // namespace railyard::transport
