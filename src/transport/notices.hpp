/// Notices: what two engines tell each other about the links between them, and the answers that peers are owed. Outside
/// the sequence: any of them may be lost or come twice, so each is asked for again until it is answered.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "transport/core.hpp"
#include "transport/failover.hpp"
#include "transport/fence_requests.hpp"
#include "transport/handshakes.hpp"
#include "transport/losses.hpp"
#include "transport/peers.hpp"
#include "transport/probes.hpp"
#include "transport/refusals.hpp"
#include "transport/reports.hpp"
#include "transport/watch_list.hpp"

namespace railyard::transport {

class Notices {
 public:
  struct Parts {
    Core& core;
    Peers& peers;
    WatchList& watched;
    Reports& reports;
    Refusals& refusals;
    Handshakes& handshakes;
    FenceRequests& fence_requests;
    Losses& losses;
    Probes& probes;
    Failover& failover;
  };
  explicit Notices(const Parts& parts) : core_(parts.core), parts_(parts) {}

  /// One has arrived. Changes state only: what it asks for is answered later.
  void on_notice(Flow& flow, const wire::FrameHeader& header);
  bool any() const { return !owing_.empty(); }
  /// Answers pings and goodbyes. Whether anything left.
  bool answer();
  /// Tells the peers that this process leaves, and waits a little until they have heard it. `pass` makes one.
  void say_goodbye(const std::function<bool()>& pass, const Ranks* only = nullptr);
  /// The route goes.
  void forget(const Route& route) { std::erase(owing_, &route); }

 private:
  void on_ping(Route& route, const wire::Ping& ping);
  void on_fence(Flow& flow, const wire::Fence& fence);
  void on_leave(Flow& flow, std::uint32_t sequence);
  void on_gossip(const Route& from, std::uint64_t rank);
  void owe(Route& route);
  void open_way_back(Route& route, wire::LinkEnds ends);
  bool may_answer(const Pong& pong) const;
  bool send_pong(Route& route, const Pong& pong);
  bool answer_leave(Route& route);

  Core& core_;
  Parts parts_;
  std::vector<Route*> owing_;  ///< have pings or a goodbye to answer
};

}  // namespace railyard::transport
