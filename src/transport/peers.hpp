/// Peers: the routes and flows to other processes. Those of worlds are made when a peer is first talked to, or talks to
/// us; channels open theirs themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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

  /// A world joins: its ranks can be talked to from now on.
  const Ranks* join(Ranks ranks);
  /// It has left, its flows are closed. Their ids are free when the last of these has gone.
  void forget(const Ranks& ranks);
  /// Flows that have been closed are gone: ids of worlds that have left may be free now.
  void release_ids();
  std::span<const std::unique_ptr<const Ranks>> worlds() const { return worlds_; }
  /// A flow on which a rank spoke for the first time when its world had left here: it is to be told so.
  struct Late {
    Flow* flow = nullptr;
    std::int64_t since = 0;
    std::int64_t told = INT64_MIN / 2;  ///< when it was last told: long ago
  };
  std::vector<Late>& late() { return late_; }

  /// A world's flow by its id, connected on first use.
  Result<Flow*> flow(std::uint32_t id);
  /// The flow if there is one already: also without the progress lock.
  Flow* existing(std::uint32_t id) const { return flows_.find(id); }
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
  const Ranks* world_of(std::uint32_t flow) const;
  bool any_route(const Ranks& world) const;
  Result<Flow*> make_flow(const Ranks& world, int rank);
  [[gnu::noinline, gnu::cold]] Flow* first_arrival(std::uint32_t id);
  Result<void> connect_route(Route& route, const PeerAddress& peer, bool network_only);

  Core& core_;
  Links& links_;
  std::vector<std::unique_ptr<const Ranks>> worlds_;
  struct Departed {
    std::unique_ptr<const Ranks> ranks;
    bool ids_free = false;  ///< none of its flows waits for what the rails still hold
  };
  std::vector<Departed> departed_;  ///< worlds that have left, oldest first
  std::vector<Late> late_;
  Registry registry_;
  FlowTable flows_;
};

}  // namespace railyard::transport
