#include "transport/scheduler.hpp"

#include <algorithm>
#include <utility>

#include "transport/reach.hpp"

namespace railyard::transport {
namespace {

/// Acknowledgements in flight on a link: one that swallows them must not take them all.
constexpr std::uint32_t kMostReportsOnLink = 8;
/// A link that takes longer than this times the fastest one's time is avoided. Smaller differences are noise.
constexpr double kMuchSlower = 2;
/// More than any load: a suspected link is the last choice.
constexpr double kSuspectLoad = 1e9;
/// Beside a latency-sensitive flow one chunk of this size is in flight on a route. Through this machine's memory it is
/// a copy that the other flow waits for; over a network its acknowledgement takes as long as a small message alone.
constexpr std::uint32_t kBesideInMemory = 24 * 1024;
constexpr std::uint32_t kBesideOnNetwork = 48 * 1024;
/// A flow with so many small messages and no chunk between them is latency-sensitive.
constexpr std::uint32_t kLatencyFlowMessages = 16;
/// So long after it spoke the way is kept free for it.
constexpr std::int64_t kLatencyFlowNanoseconds = 5'000'000;

/// Operations up to this size are over before a second link would pay.
constexpr std::uint64_t kSmallOperation = 64 * 1024;
/// Up to this size they are through before they meet the peer's on the same connection.
constexpr std::uint64_t kMeetNobody = 48 * 1024;
/// Seconds, about: what arrives on another link than that of the small traffic is seen later, because nobody looks at
/// quiet rails in every pass, and costs both ends system calls of its own.
constexpr double kColdLink = 30e-6;
/// What small operations tell of a link's rate is mostly its delay: up to so many seconds no link is much slower.
constexpr double kSmallSeconds = 500e-6;

/// Small traffic keeps to one link of a route while that link has little to do: frames of both directions to the same,
/// chunks of one direction to the same.
double cold(const Flow& flow, const Link& link, std::uint32_t warm) {
  return flow.route->index_of(link) == warm ? 0 : kColdLink;
}
auto small_cost(const Flow& flow) {
  return [&flow](const Link& link) { return link.load() + cold(flow, link, flow.first_link); };
}

}  // namespace

/// The link of the least cost, in seconds, that has room and was not tried yet; among equals the first from `first` on.
/// While there is a link that nobody suspects, new segments wait for that one, unless `suspects` will do.
template <typename HasRoom, typename Cost>
Link* Scheduler::choose(Flow& flow, std::size_t first, Tried tried, bool suspects, HasRoom&& has_room, Cost&& cost) {
  std::vector<Link>& links = flow.route->links;
  const std::size_t count = links.size();
  if (count == 1) {
    Link& only = links.front();
    return tried == 0 && only.up() && has_room(only, flow.shares.front()) ? &only : nullptr;
  }
  Link* best = nullptr;
  double best_load = 0;
  bool trusted = false;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = (first + i) % count;
    Link& link = links[index];
    trusted |= link.up() && !link.suspect();
    if ((tried >> index & 1U) != 0 || !link.up() || !has_room(link, flow.shares[index])) continue;
    const double load = cost(link) + (link.suspect() ? kSuspectLoad : 0);
    if (best == nullptr || load < best_load) {
      best = &link;
      best_load = load;
    }
  }
  return best != nullptr && best->suspect() && trusted && !suspects ? nullptr : best;
}

/// That link, where something of the flow goes already; null: it was tried, or is not to be trusted.
template <typename HasRoom>
Link* Scheduler::preferred(Flow& flow, std::uint16_t index, Tried tried, HasRoom&& has_room) {
  if (index >= flow.shares.size() || (tried >> index & 1U) != 0) return nullptr;
  Link& link = flow.route->links[index];
  return link.up() && !link.suspect() && has_room(link, flow.shares[index]) ? &link : nullptr;
}

/// What follows a chunk takes effect behind it, wherever it goes: on the same link it leaves in the same system call,
/// and its target looks at one rail.
Link* Scheduler::link_for_frame(Flow& flow, bool full, Tried tried) {
  const std::uint32_t most = full ? kMostFramesOnLink : kEagerFrames;
  const auto has_room = [most](const Link& link, const Share& share) { return takes_frame(link, share, most); };
  const std::uint16_t behind = std::exchange(flow.chunk_on, Flow::kNoLink);
  const auto under_way = [&](const Link& link, const Share& share) {
    return share.bytes != 0 && has_room(link, share);
  };
  if (Link* const link = preferred(flow, behind, tried, under_way)) return link;
  return choose(flow, flow.first_link, tried, false, has_room, small_cost(flow));
}

Link* Scheduler::link_for_notice(Flow& flow, Tried tried) {
  const auto has_room = [](const Link& link, const Share& share) {
    return takes_frame(link, share, kMostFramesOnLink);
  };
  return choose(flow, flow.first_link, tried, true, has_room, small_cost(flow));
}

Link* Scheduler::link_for_report(Flow& flow, Tried tried) {
  const auto has_room = [](const Link& link, const Share&) { return link.reports_in_flight() < kMostReportsOnLink; };
  const std::uint16_t back = std::exchange(flow.landed_on, Flow::kNoLink);
  if (Link* const link = preferred(flow, back, tried, has_room)) return link;
  return choose(flow, flow.first_link, tried, true, has_room, small_cost(flow));
}

void Scheduler::chunk_landed(Flow& flow, std::size_t rail) {
  const auto found = std::ranges::find(flow.route->links, rail, &Link::rail);
  if (found != flow.route->links.end()) flow.landed_on = flow.route->index_of(*found);
}

/// Flows that share a link have equal parts of what may be in flight on it; one that has nothing there yet need not
/// wait for the others.
Link* Scheduler::link_for_chunk(Flow& flow, Tried tried, std::uint64_t bytes, std::uint64_t left, std::int64_t now) {
  if (flow.route->bytes_in_flight != 0 && yields(flow, now)) return nullptr;
  const std::uint64_t flows = std::max(flow.route->bulk_flows, 1U);
  const auto has_room = [flows](const Link& link, const Share& share) {
    return link.sole == nullptr && (share.bytes == 0 || (link.has_room() && share.bytes < link.window() / flows));
  };
  const Link* fastest = nullptr;
  for (const Link& link : flow.route->links) {
    if (link.up() && !link.suspect() && (fastest == nullptr || link.rate() > fastest->rate())) fastest = &link;
  }
  const bool small = bytes <= kSmallOperation;
  const std::uint32_t warm = bytes <= kMeetNobody ? flow.first_link : flow.small_chunks;
  const auto cost = [&](const Link& link) {
    // One that has shown nothing for a while is tried: small operations alone would never leave a slow link.
    if (fastest == nullptr || link.stale(now)) return link.load() - (small ? kColdLink : 0);
    const std::uint64_t part = std::min<std::uint64_t>(left, link.chunk());
    const double accepted = std::max(kMuchSlower * fastest->time_of(part), small ? kSmallSeconds : 0);
    const double longer = std::max(link.time_of(part) - accepted, 0.0);
    return link.load() + longer + (small ? cold(flow, link, warm) : 0);
  };
  return choose(flow, small ? warm : flow.first_chunk, tried, false, has_room, cost);
}

Link* Scheduler::link_alone(Flow& flow, const Segment& segment) {
  if (segment.operation->on_trial && !segment.alone) return nullptr;  // one of its chunks at a time
  Link* best = nullptr;
  for (Link& link : flow.route->links) {
    if (!link.up() || (link.sole != nullptr && link.sole != &segment)) continue;
    if (!reaches(link, segment.operation->region.get(), segment.operation->remote)) continue;
    if (best == nullptr || link.sole == &segment || link.bytes_in_flight() < best->bytes_in_flight()) best = &link;
    if (link.sole == &segment) break;
  }
  if (best == nullptr) return nullptr;
  best->sole = &segment;  // nothing more is put there
  return best->bytes_in_flight() == 0 ? best : nullptr;
}

/// The segment is done with, or no link has it.
void Scheduler::end_alone(Segment& segment) {
  if (segment.alone) segment.operation->on_trial = false;
  for (Link& link : segment.operation->flow->route->links) {
    if (link.sole == &segment) link.sole = nullptr;
  }
}

std::uint32_t Scheduler::chunk_bytes(const Flow& flow, const Link& link, const Operation& operation, std::int64_t now) {
  const std::uint64_t left = operation.bytes - operation.started;
  std::uint64_t chunk = link.chunk();
  const bool between_gpus = operation.remote.on_device && operation.region->device() >= 0;
  if (between_gpus && flow.route->device_chunk != 0) {
    // One copy by the GPU: it holds up no processor, and each costs more to begin than a megabyte takes.
    chunk = flow.route->device_chunk;
  } else if (yields(flow, now)) {
    chunk = std::min<std::uint64_t>(chunk, flow.route->in_memory ? kBesideInMemory : kBesideOnNetwork);
  }
  // A remainder shorter than half a chunk rides along rather than on its own.
  const bool last = left <= chunk + chunk / 2 && left <= flow.route->max_write;
  return static_cast<std::uint32_t>(last ? left : std::min<std::uint64_t>(left, chunk));
}

void Scheduler::note_small(Flow& flow, std::int64_t now) {
  if (++flow.lone_messages < kLatencyFlowMessages) return;
  flow.route->latency_flow = &flow;
  flow.route->latency_flow_at = now;
}

bool Scheduler::yields(const Flow& flow, std::int64_t now) {
  const Route& route = *flow.route;
  return route.latency_flow != nullptr && route.latency_flow != &flow && route.moved_by_us &&
         now - route.latency_flow_at < kLatencyFlowNanoseconds;
}

}  // namespace railyard::transport
