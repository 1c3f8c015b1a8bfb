/// Health: how the links are: who is late, who is stuck, who is silent for too long. Looked at about once a
/// millisecond, and only where something is under way. Where no link answers, the peer is busy with something else, or
/// gone: only `RAILYARD_PEER_TIMEOUT_MS` of that ends the wait.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/core.hpp"
#include "transport/failover.hpp"
#include "transport/fence_requests.hpp"
#include "transport/flow.hpp"
#include "transport/losses.hpp"
#include "transport/probes.hpp"
#include "transport/reconnects.hpp"
#include "transport/watch_list.hpp"

namespace railyard::transport {

class Health {
 public:
  struct Parts {
    Core& core;
    WatchList& watched;
    FenceRequests& fence_requests;
    Losses& losses;
    Probes& probes;
    Reconnects& reconnects;
    Failover& failover;
  };
  explicit Health(const Parts& parts) : core_(parts.core), parts_(parts), looked_at_(parts.core.clock->now()) {}

  /// When the next look is due.
  std::int64_t due() const;
  /// Moves the health clock on, and looks after every route that is watched.
  void look();
  /// What the health clock left out, in all: how long this process was away. Any thread.
  std::int64_t away() const { return away_.load(std::memory_order_relaxed); }
  /// For how much longer the peer may be silent before it is lost; INT64_MAX: nobody doubts that it is there.
  std::int64_t time_to_loss(const Route& route) const;

 private:
  void look_after(Route& route);
  void look_after(Route& route, Link& link);
  void look_at_head(Flow& flow);
  void look_at_connection(Route& route, Link& link);
  void look_at_deliveries(Route& route, Link& link);
  void look_at_answers(Route& route);
  void look_at_silence(Route& route);
  fabric::Liveness liveness(Route& route);
  void note_stall(Route& route, std::int64_t silence);
  std::int64_t stuck_after(const Link& link) const;
  bool is_stuck(Link& link, std::int64_t age, std::int64_t limit) const;
  bool fail_stuck(Route& route, std::int64_t age, std::int64_t limit);
  bool at_rest(const Route& route) const;

  Core& core_;
  Parts parts_;
  std::int64_t looked_at_;
  std::atomic<std::int64_t> away_{0};  ///< for estimates: relaxed
};

}  // namespace railyard::transport
