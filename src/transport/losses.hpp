/// Losses: the end of a peer: it is gone, it has left, or it is given up. Whoever is told so may use its memory for
/// something else at once. So the peer is shut out first: our own links are dropped, every link that it has to us is
/// fenced for good, and our rails give back what they held; flows fail only then. docs/failover.md, "A peer".
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "transport/completions.hpp"
#include "transport/core.hpp"
#include "transport/links.hpp"
#include "transport/peers.hpp"
#include "transport/reports.hpp"

namespace railyard::transport {

class Losses {
 public:
  Losses(Core& core, Links& links, Peers& peers, Completions& completions, Reports& reports)
      : core_(core), links_(links), peers_(peers), completions_(completions), reports_(reports) {}

  /// The peer is given up. `cause`: the flow on whose behalf.
  void begin(Route& route, const std::string& why, const Flow* cause = nullptr);
  /// The same if its machine says that it is gone, or its rails refuse us for good. Whether it is being given up.
  bool begin_if_gone(Route& route);
  /// The peer has said goodbye, and all that it sent before has been taken in.
  void part(Route& route);

  bool any() const { return !losing_.empty() || !gossip_.empty(); }
  /// Ends those that can be, and tells the other peers. After the rails were polled and what came of it was handled: a
  /// fence that holds has let everything through that will ever come. Whether any ended.
  bool end();

  /// The flow id of the rank that was lost last (not one that has left); -1: none. Any thread.
  int last() const { return last_.load(std::memory_order_acquire); }
  /// A world has left: its ids may be another's.
  void forget(const Ranks& world) {
    if (last() >= 0 && world.owns(static_cast<std::uint32_t>(last()))) last_.store(-1, std::memory_order_release);
  }

 private:
  bool nobody_there(const Route& route) const;
  bool given_up_by_peer(const Route& route) const;
  void begin(Route& route, Loss loss);
  bool shut_out(Route& route);
  void tell(Route& route);
  void spread_gossip();

  Core& core_;
  Links& links_;
  Peers& peers_;
  Completions& completions_;
  Reports& reports_;
  std::vector<Route*> losing_;
  struct Lost {
    const Ranks* world = nullptr;
    int rank = -1;
  };
  std::vector<Lost> gossip_;  ///< that the other ranks have not been told of
  std::atomic<int> last_{-1};
};

}  // namespace railyard::transport
