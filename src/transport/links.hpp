/// Links: connects links and disconnects them, and knows which one a rail speaks of.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/rail.hpp"
#include "railyard/result.hpp"
#include "transport/core.hpp"
#include "transport/parts.hpp"
#include "transport/route.hpp"

namespace railyard::transport {

class Links {
 public:
  explicit Links(Core& core) : core_(core), by_rail_(core.rails.size()) {}

  /// Begins a connection, under the link's epoch. Nothing is known of its speed.
  Result<void> connect(Route& route, Link& link, const PeerAddress& peer);
  void disconnect(const Link& link);
  /// Its route is over.
  void drop(Link& link) {
    if (link.health.on(LinkEvent::ended) == LinkAction::disconnect) disconnect(link);
  }
  void drop_all(Route& route) {
    for (Link& link : route.links) drop(link);
  }

  struct Ref {
    Route* route = nullptr;  ///< null: none that is still of interest
    std::uint16_t index = 0;
  };
  /// The link that the rail knows by this number.
  Ref find(std::size_t rail, fabric::RemoteId remote) const {
    const std::vector<Ref>& refs = by_rail_[rail];
    return remote < refs.size() ? refs[remote] : Ref{};
  }

 private:
  Core& core_;
  std::vector<std::vector<Ref>> by_rail_;  ///< by rail, then by RemoteId
};

}  // namespace railyard::transport
