/// What an engine, a route and a flow are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/identity.hpp"
#include "fabric/rail.hpp"
#include "railyard/result.hpp"
#include "railyard/settings.hpp"
#include "transport/route.hpp"

namespace railyard::transport {

class Inbox;

/// A peer as the world's directory knows it.
struct PeerAddress {
  Identity identity;
  struct RailAt {
    std::string fabric;
    std::span<const std::byte> address;
  };
  std::vector<RailAt> rails;
};

struct EngineParts {
  Settings settings;
  Clock* clock = nullptr;
  std::vector<std::unique_ptr<fabric::Rail>> rails;
  /// A world's engine knows its peers by rank, and makes route and flow when one is first talked to. Of size 0: there
  /// are no ranks; whoever uses the engine opens both, for peers of its own numbering.
  int rank = 0;
  int size = 1;
  Identity identity;
  /// Looks a peer up: when a route to it is made, and when one of its links is made anew.
  std::function<Result<PeerAddress>(int)> find_peer;
};

/// A route that its user opens.
struct RouteParts {
  int peer = -1;    ///< what `find_peer` is asked for
  std::string who;  ///< for messages
  RouteName name;
  RouteKey key;
  std::uint64_t instance = 0;
};

/// A flow that its user opens.
struct FlowParts {
  Route* route = nullptr;
  std::uint16_t id = 0;  ///< from `reserve_flow`
  std::uint16_t remote_id = 0;
  std::uint64_t session_out = 0;
  std::uint64_t session_in = 0;
  Inbox* inbox = nullptr;
};

}  // namespace railyard::transport
