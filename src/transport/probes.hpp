/// Probes: pings over all links of a route, to find out which of them answer.
///
/// A segment that is overdue says that its peer or its link is in trouble, not which. So every link is asked at once:
/// one that stays silent while another answers is dead. Threads that get little of their processors look at one link
/// now and at another much later, at both ends. So a link is called silent only on what a loaded machine cannot bring
/// about: the peer has read all its other links twice over, this side has looked several times since, and the rail
/// does not know that the peer's machine takes what the link brings (`Rail::delivery`).
#pragma once

#include <cstdint>

#include "transport/core.hpp"
#include "transport/flow.hpp"
#include "transport/handshakes.hpp"
#include "transport/reports.hpp"
#include "transport/watch_list.hpp"

namespace railyard::transport {

/// How notices name a link.
inline wire::LinkEnds ends_of(const Route& route, const Link& link) {
  return {route.index_of(link), link.rail(), link.remote_rail()};
}

class Probes {
 public:
  Probes(Core& core, WatchList& watched, Reports& reports, Handshakes& handshakes)
      : core_(core), watched_(watched), reports_(reports), handshakes_(handshakes) {}

  /// Asks all links of the route. `answering`: because the peer does.
  void start(Route& route, bool answering);
  /// The link is late: all are asked, unless they just were.
  void suspect(Route& route, Link& link);
  /// Finds out whether the peer is still there: if not, it is lost.
  void check_on(Route& route);
  /// Sends a ping. False: the link is not connected yet, or has just gone.
  bool ask(Route& route, Link& link, bool thorough = false);
  void on_pong(Route& route, wire::LinkEnds ends, std::uint32_t round);

  /// Goes on with the probe of a route. Returns the links that are silent while others answer, as bits.
  std::uint64_t judge(Route& route);
  /// Whether the rail knows that the link carries: the peer's machine has taken all that was sent, or more of it than
  /// at the last look, or did so less than a chunk's time ago.
  bool carries(Link& link) const;

 private:
  void ask_again(Route& route);

  Core& core_;
  WatchList& watched_;
  Reports& reports_;
  Handshakes& handshakes_;
};

}  // namespace railyard::transport
