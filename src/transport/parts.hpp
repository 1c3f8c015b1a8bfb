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

/// What a rank tells of itself in a world. Ends of channels have none.
struct WorldEntry {
  std::uint16_t first_flow = 0;  ///< its own `Ranks::first_flow`
  std::uint64_t instance = 0;    ///< rank 0's is the world's
};

/// Where a peer is: from what it contributed when the ranks of its world met, or when its channel was set up.
struct PeerAddress {
  Identity identity;
  struct RailAt {
    std::string fabric;
    std::span<const std::byte> address;
  };
  std::vector<RailAt> rails;
  WorldEntry entry;
};

/// The ranks of a world that has joined an engine. Its flows and routes are of this world alone, each made when a peer
/// is first talked to, or talks to us.
struct Ranks {
  int own = 0;  ///< this process's
  int size = 1;
  /// Tells worlds of the same processes apart: one number in all processes of a world, another in every other world.
  std::uint64_t instance = 0;
  /// The flow to rank r has the id first_flow + r in this engine: from `Engine::reserve_flows`.
  std::uint16_t first_flow = 0;
  /// Looks a rank up: when a route to it is made, and when one of its links is made anew.
  std::function<Result<PeerAddress>(int rank)> find;

  std::uint32_t flow_of(int rank) const { return first_flow + static_cast<std::uint32_t>(rank); }
  bool owns(std::uint32_t flow) const { return flow - first_flow < static_cast<std::uint32_t>(size); }
};

struct EngineParts {
  Settings settings;
  Clock* clock = nullptr;
  std::vector<std::unique_ptr<fabric::Rail>> rails;
  /// The world that joins at once (`Engine::join`). Of size 0: none does.
  int rank = 0;
  int size = 1;
  Identity identity;
  /// Looks a rank of that world up, or a peer of a route that the engine's user opens.
  std::function<Result<PeerAddress>(int)> find_peer;
  std::size_t most_flows = 0;  ///< at a time; 0: as many as the world has ranks, or kMostFlows
  static constexpr std::size_t kMostFlows = 32768;
};

/// A route that its user opens.
struct RouteParts {
  int peer = -1;                 ///< what `find_peer` is asked for
  const Ranks* world = nullptr;  ///< the same of this world
  std::string who;               ///< for messages
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
