/// Which links can carry memory of GPUs: not every NIC of a machine need reach every GPU of it.
#pragma once

#include "transport/flow.hpp"
#include "transport/operation.hpp"
#include "transport/route.hpp"
#include "transport/scheduler.hpp"

namespace railyard::transport {

/// Whether both ends of the link reach the two places. Without memory of GPUs all do.
inline bool reaches(const Link& link, const memory::Region* local, const RemoteMemory& remote) {
  const bool here = local == nullptr || local->device() < 0 || local->reached_by(link.rail());
  return here && (!remote.on_device || remote.keys[link.remote_rail()].key != 0);
}

/// The links that an operation's chunks cannot take.
inline Scheduler::Tried unreached(const Flow& flow, const Operation& operation) {
  const memory::Region* const local = operation.region.get();
  if (!operation.remote.on_device && (local == nullptr || local->device() < 0)) [[likely]]
    return 0;
  Scheduler::Tried links = 0;
  for (const Link& link : flow.route->links)
    if (!reaches(link, local, operation.remote)) links = Scheduler::with(links, flow, link);
  return links;
}

}  // namespace railyard::transport
