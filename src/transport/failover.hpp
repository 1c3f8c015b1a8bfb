/// Failover: a link dies. What it carried waits until the target has shut the dead link out and said what has arrived;
/// the rest goes out again on other links: docs/failover.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/completions.hpp"
#include "transport/core.hpp"
#include "transport/links.hpp"
#include "transport/peers.hpp"
#include "transport/poster.hpp"
#include "transport/reconnects.hpp"
#include "transport/transmitter.hpp"

namespace railyard::transport {

class Failover {
 public:
  struct Parts {
    Core& core;
    Links& links;
    Peers& peers;
    Completions& completions;
    WatchList& watched;
    Poster& poster;
    Reports& reports;
    Transmitter& transmitter;
    Losses& losses;
    Reconnects& reconnects;
  };
  explicit Failover(const Parts& parts) : core_(parts.core), parts_(parts) {}

  void fail_link(Route& route, Link& link, LossCause cause, const std::string& why = "");
  /// All that are up.
  void fail_links(Route& route, LossCause cause);
  /// All of that rail.
  void fail_links_of(const RailState& rail);
  /// Those that a post has failed on.
  void fail_broken();

  // ---- What the rails report ----

  void on_lost(const RailState& rail, const fabric::Event& event);
  /// Its interface went down, or came up again.
  void on_rail_state(RailState& rail, bool down);
  /// The rail gives a segment back undone.
  void on_failed(Segment& segment, fabric::Blame blame, const std::string& why);

  // ---- Fences ----

  /// Asks the target, over whatever link there is, to shut the dead one out; again and again until it has. Each flow
  /// asks for itself: what has arrived is told flow by flow.
  void ask_for_fences(Route& route, Link& link);
  /// It has, and says what has arrived.
  void on_fenced(Flow& flow, wire::LinkEnds ends, std::uint32_t epoch, std::span<const std::byte> body);

 private:
  void leave(Route& route, Link& link, LossCause cause, const std::string& reason);
  static std::uint32_t leave_link(Flow& flow, const Link& link);
  void ask_for_fence(Flow& flow, Link& link);
  void release_fenced(Flow& flow, Link& link, const wire::FencedBody& report, std::span<const std::byte> bits);
  void note_fault(Segment& segment);

  Core& core_;
  Parts parts_;
};

}  // namespace railyard::transport
