#include "transport/scheduler.hpp"

namespace railyard::transport {
namespace {

/// Frames in flight on a link before the next one waits for company: an idle link sends at once, a busy one fills
/// frames.
constexpr std::uint32_t kEagerFrames = 2;
/// Full frames in flight on a link.
constexpr std::uint32_t kMostFramesOnLink = 64;
/// Acknowledgements in flight on a link: one that swallows them must not take them all.
constexpr std::uint32_t kMostReportsOnLink = 8;
/// A link that takes longer than this times the fastest one's time is avoided. Smaller differences are noise.
constexpr double kMuchSlower = 2;
/// More than any load: a suspected link is the last choice.
constexpr double kSuspectLoad = 1e9;
/// Beside a latency-sensitive flow one chunk of this size is in flight on a route.
constexpr std::uint32_t kBesideLatencyFlow = 24 * 1024;
/// A flow with so many small messages and no chunk between them is latency-sensitive.
constexpr std::uint32_t kLatencyFlowMessages = 16;
/// So long after it spoke the way is kept free for it.
constexpr std::int64_t kLatencyFlowNanoseconds = 5'000'000;

double load_of(const Link& link) { return link.load(); }

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

[[gnu::hot]] Link* Scheduler::link_for_frame(Flow& flow, bool full, Tried tried) {
  const std::uint32_t most = full ? kMostFramesOnLink : kEagerFrames;
  const auto has_room = [most](const Link& link, const Share& share) {
    return share.frames < most && link.frames_in_flight() < kMostFramesOnLink;
  };
  return choose(flow, flow.first_link, tried, false, has_room, load_of);
}

Link* Scheduler::link_for_notice(Flow& flow, Tried tried) {
  const auto has_room = [](const Link& link, const Share& share) {
    return share.frames < kMostFramesOnLink && link.frames_in_flight() < kMostFramesOnLink;
  };
  return choose(flow, flow.first_link, tried, true, has_room, load_of);
}

Link* Scheduler::link_for_report(Flow& flow, Tried tried) {
  const auto has_room = [](const Link& link, const Share&) { return link.reports_in_flight() < kMostReportsOnLink; };
  return choose(flow, flow.first_link, tried, true, has_room, load_of);
}

/// Flows that share a link have equal parts of what may be in flight on it; one that has nothing there yet need not
/// wait for the others.
Link* Scheduler::link_for_chunk(Flow& flow, Tried tried, std::uint64_t left, std::int64_t now) {
  if (flow.route->bytes_in_flight != 0 && yields(flow, now)) return nullptr;
  const std::uint64_t flows = std::max(flow.route->bulk_flows, 1U);
  const auto has_room = [flows](const Link& link, const Share& share) {
    return link.sole == nullptr && (share.bytes == 0 || (link.has_room() && share.bytes < link.window() / flows));
  };
  const Link* fastest = nullptr;
  for (const Link& link : flow.route->links) {
    if (link.up() && !link.suspect() && (fastest == nullptr || link.rate() > fastest->rate())) fastest = &link;
  }
  const auto cost = [&](const Link& link) {
    if (fastest == nullptr || link.stale(now)) return link.load();
    const std::uint64_t bytes = std::min<std::uint64_t>(left, link.chunk());
    return link.load() + std::max(link.time_of(bytes) - kMuchSlower * fastest->time_of(bytes), 0.0);
  };
  return choose(flow, flow.first_chunk, tried, false, has_room, cost);
}

Link* Scheduler::link_alone(Flow& flow, const Segment& segment) {
  if (segment.operation->on_trial && !segment.alone) return nullptr;  // one of its chunks at a time
  Link* best = nullptr;
  for (Link& link : flow.route->links) {
    if (!link.up() || (link.sole != nullptr && link.sole != &segment)) continue;
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
    chunk = std::min<std::uint64_t>(chunk, kBesideLatencyFlow);
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
