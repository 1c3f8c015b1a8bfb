/// Peers: the routes and flows to other processes. A world's are made when a peer is first talked to, or talks to us;
/// channels open theirs themselves.
#pragma once

#include <cstdint>

#include "railyard/result.hpp"
#include "transport/core.hpp"
#include "transport/flow_table.hpp"
#include "transport/links.hpp"
#include "transport/parts.hpp"
#include "transport/registry.hpp"

namespace railyard::transport {

class Peers {
 public:
  Peers(Core& core, Links& links);

  /// The flow to a rank, connected on first use.
  Result<Flow*> flow(int peer) {
    if (Flow* known = existing(peer)) return known;
    return make_flow(peer);
  }
  /// The flow if there is one already: also without the progress lock.
  Flow* existing(int peer) const { return flows_.find(static_cast<std::size_t>(peer)); }
  /// The flow that something arrived for. Null: there is none of that id.
  Flow* arriving(std::uint32_t id) {
    if (id >= flows_.most()) [[unlikely]]
      return nullptr;
    Flow* const known = flows_.held(id);
    return known != nullptr ? known : first_arrival(id);
  }

  Result<Route*> open_route(RouteParts parts);
  Flow* open_flow(const FlowParts& parts);

  FlowTable& flows() { return flows_; }
  const FlowTable& flows() const { return flows_; }
  Registry& registry() { return registry_; }
  const Registry& registry() const { return registry_; }

 private:
  Result<Flow*> make_flow(int peer);
  [[gnu::noinline, gnu::cold]] Flow* first_arrival(std::uint32_t id);
  Result<void> connect_route(Route& route, const PeerAddress& peer, bool network_only);

  Core& core_;
  Links& links_;
  Registry registry_;
  FlowTable flows_;
};

}  // namespace railyard::transport
