/// Core: what all parts of an engine share: how it is set up, what time it is, its rails, its pools, what it counts.
/// It does nothing by itself, and knows no part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/identity.hpp"
#include "memory/cache.hpp"
#include "railyard/settings.hpp"
#include "railyard/statistics.hpp"
#include "transport/engine_telemetry.hpp"
#include "transport/engine_trace.hpp"
#include "transport/grants.hpp"
#include "transport/parts.hpp"
#include "transport/pools.hpp"
#include "transport/progress_lock.hpp"
#include "transport/rail_set.hpp"
#include "transport/waiting.hpp"

namespace railyard::transport {

/// How long, in nanoseconds, a rail may take to give back what a link that has ended held. One that does not is
/// stopped: it may still read or write memory that its owner wants back, or that a lost peer's operations named.
inline constexpr std::int64_t kMostReturn = 5'000'000'000;

struct Core {
  /// `agenda`: what the loop has to do if nobody says anything.
  Core(EngineParts parts, std::function<Waiting::Agenda()> agenda);
  Result<void> open();
  /// So many flows may each send their first grant unasked; receive buffers beyond that are shared out.
  void expect_flows(std::size_t flows);
  Result<PeerAddress> find(const Route& route) const {
    return route.world != nullptr ? route.world->find(route.peer) : find_peer(route.peer);
  }

  // How it is set up.
  Settings settings;
  Clock* clock;
  Identity identity;
  std::size_t most_flows;
  std::function<Result<PeerAddress>(int)> find_peer;  ///< for routes that are no world's
  std::size_t inline_bytes = 0;                       ///< the longest put that travels inside a frame
  std::uint32_t window = 0;                           ///< segments of a flow that may be unacknowledged
  bool failover = true;
  std::int64_t deadline_floor = 0;  ///< nanoseconds: no answer is late before
  std::int64_t peer_timeout = 0;    ///< nanoseconds of silence that a peer is given

  // What time it is.
  std::int64_t now = 0;  ///< when this pass began
  /// Goes on only while somebody makes progress, so that a process that was away for a while does not blame its peers
  /// for it. Moved on by Health.
  std::int64_t health_clock = 1;
  /// Something is there to do that rarely is: whoever has it says so, and the loop asks them all.
  bool has_chores = false;
  bool rails_stuck = false;  ///< at least one (RailState::stuck); the loop stops them

  std::vector<std::shared_ptr<const void>> kept;  ///< outlives the rails, which may read it until they end
  RailSet rails;
  Pools pools;
  Grants grants;
  std::unique_ptr<memory::RegionCache> cache;

  WorldStatistics counts;
  EngineTrace trace;
  std::unique_ptr<EngineTelemetry> telemetry;  ///< null: nothing is published

  ProgressLock progress_lock;
  Waiting waiting;

  /// Whether the rail holds that segment.
  static bool carries(const RailState& rail, const Segment& segment) {
    return segment.posted && segment.operation->flow->route->links[segment.link].rail() == rail.index;
  }
  /// The rail that has the segment has not given it back in time.
  void note_stuck(const Segment& segment);
  /// Those that have any of that route.
  void note_stuck(const Route& route);
};

}  // namespace railyard::transport
