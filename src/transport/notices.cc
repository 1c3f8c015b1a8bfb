#include "transport/notices.hpp"

#include <algorithm>

namespace railyard::transport {
namespace {

/// Pings that wait for their answer; a peer that asks more often is not answered more often.
constexpr std::size_t kMostPongs = 64;
/// A rail that always has more does not keep a thorough answer for longer than so many polls.
constexpr std::uint64_t kMostPollsToAnswer = 16;
/// How long a process that leaves waits until its peers have heard it, and for how many passes.
constexpr std::int64_t kMostLeave = 500'000'000;
constexpr int kMostLeavePasses = 2000;

/// Whether the peer is still there to be told anything.
bool may_hear(const Route& route) { return !route.over && !route.loss.on; }

}  // namespace

void Notices::on_notice(Flow& flow, const wire::FrameHeader& header) {
  wire::RecordReader reader(header);
  wire::RecordReader::Record record;
  if (!reader.next(record)) {
    ++core_.counts.dropped_malformed;
    return;
  }
  switch (record.header.kind) {
    case wire::RecordKind::ping:
      return on_ping(*flow.route, wire::Ping::of(record.header));
    case wire::RecordKind::pong: {
      const auto pong = wire::Pong::of(record.header);
      return parts_.probes.on_pong(*flow.route, pong.ends, pong.round);
    }
    case wire::RecordKind::fence:
      return on_fence(flow, wire::Fence::of(record.header));
    case wire::RecordKind::fenced: {
      const auto fenced = wire::Fenced::of(record.header);
      return parts_.failover.on_fenced(flow, fenced.ends, fenced.epoch, record.body);
    }
    case wire::RecordKind::refused:
      return parts_.refusals.on_refused(flow, record.body);
    case wire::RecordKind::confirmed:
      return parts_.refusals.on_confirmed(flow, wire::Confirmed::of(record.header).known);
    case wire::RecordKind::leave:
      if (!wire::Leave::of(record.header).answer) return on_leave(flow, header.sequence);
      flow.route->leave_heard = true;
      return;
    case wire::RecordKind::lost:
      return on_gossip(*flow.route, wire::Lost::of(record.header).rank);
    default:
      ++core_.counts.dropped_malformed;
  }
}

void Notices::on_ping(Route& route, const wire::Ping& ping) {
  if (route.pongs.empty()) route.pongs_since = core_.health_clock;
  if (route.pongs.size() < kMostPongs)
    route.pongs.push_back({ping.round, ping.ends, ping.thorough, core_.rails.polls()});
  owe(route);
  if (!core_.failover) return;
  open_way_back(route, ping.ends);
  // Whoever asks has waited in vain: our own links to it may be the reason.
  if (!ping.in_reply && !route.probe.on) parts_.probes.start(route, true);
}

/// A ping that cannot be answered, for want of a link, proves a path at least: it is tried at once, whatever the
/// back-off. Two sides that waited each for its own time might never be there together.
void Notices::open_way_back(Route& route, wire::LinkEnds ends) {
  if (std::ranges::any_of(route.links, [](const Link& link) { return link.health.state != LinkState::down; })) return;
  for (Link& link : route.links) {
    if (link.rail() == ends.remote_rail && link.remote_rail() == ends.rail) link.attempts.next_try = core_.health_clock;
  }
  parts_.watched.watch(route);
}

void Notices::on_fence(Flow& flow, const wire::Fence& fence) {
  const wire::LinkEnds ends = fence.ends;
  if (ends.remote_rail >= core_.rails.size()) {
    ++core_.counts.dropped_malformed;
    return;
  }
  parts_.fence_requests.add(flow, ends, fence.epoch);
  if (!core_.failover) return;
  Route& route = *flow.route;
  parts_.watched.watch(route);  // until it is answered: without a link, one must be made
  // The way back leads over the same two rails.
  for (Link& link : route.links) {
    if (link.rail() != ends.remote_rail || link.remote_rail() != ends.rail) continue;
    if (static_cast<LossCause>(fence.cause) == LossCause::local_down) {
      parts_.failover.fail_link(route, link, LossCause::remote_down);
    } else if (link.up()) {
      parts_.probes.suspect(route, link);
    }
  }
}

void Notices::on_gossip(const Route& from, std::uint64_t rank) {
  const Ranks* const world = from.world;
  if (world == nullptr || rank >= static_cast<std::uint64_t>(world->size)) {
    ++core_.counts.dropped_malformed;
  } else if (static_cast<int>(rank) != world->own) {
    const auto found = parts_.peers.flow(world->flow_of(static_cast<int>(rank)));
    if (found) parts_.probes.check_on(*(*found)->route);
  }
}

void Notices::on_leave(Flow& flow, std::uint32_t sequence) {
  flow.leaving = flow.route->leaving = true;
  flow.leave_sequence = sequence;
  owe(*flow.route);
}

void Notices::owe(Route& route) {
  if (route.in_noticing) return;
  parts_.watched.watch(route);
  route.in_noticing = true;
  owing_.push_back(&route);
  core_.has_chores = true;
}

/// Answers pings, each over every link that may be heard: also over those that wait for an answer themselves, or two
/// sides that have only such links would wait for each other.
bool Notices::answer() {
  bool moved = false;
  std::erase_if(owing_, [&](Route* route) {
    const bool over = is_silent(*route) || route->over;
    if (over) route->pongs.clear();
    bool refused = false;
    moved |= std::erase_if(route->pongs, [&](const Pong& pong) {
               if (!may_answer(pong)) return false;
               const bool sent = send_pong(*route, pong);
               refused |= !sent;
               return sent;
             }) > 0;
    if (!refused) route->pongs_since = core_.health_clock;
    const bool leaves = !over && route->leaving && !answer_leave(*route);
    route->in_noticing = !route->pongs.empty() || leaves;
    return !route->in_noticing;
  });
  return moved;
}

/// A thorough one says that the peer's other links have been read: whatever they had brought has been answered with it.
bool Notices::may_answer(const Pong& pong) const {
  return !pong.thorough || core_.rails.polls() - pong.came_with >= kMostPollsToAnswer ||
         core_.rails.all_read_since(pong.came_with);
}

bool Notices::send_pong(Route& route, const Pong& pong) {
  Flow& flow = *control_flow(route);
  bool sent = false;
  for (Link& link : route.links) {
    if (link.health.state != LinkState::down)
      sent |= parts_.reports.send_notice(flow, link, wire::Pong{pong.round, pong.ends}.header());
  }
  return sent;
}

/// Whether the peer's goodbye is dealt with: what it sent before has been taken in, and it has been told so.
bool Notices::answer_leave(Route& route) {
  const auto late = std::ranges::find_if(route.flows, [](const Flow* flow) {
    return !flow->failed.load(std::memory_order_relaxed) && flow->leaving &&
           static_cast<std::int32_t>(flow->leave_sequence - flow->receiver.next()) > 0;
  });
  if (late != route.flows.end()) return false;
  parts_.reports.send_notice(*control_flow(route), wire::Leave{.answer = true}.header());
  parts_.losses.part(route);
  return true;
}

void Notices::say_goodbye(const std::function<bool()>& pass, const Ranks* only) {
  if (!core_.failover) return;
  Clock& clock = *core_.clock;
  const auto pass_or_idle = [&] {
    if (!pass()) clock.idle();
  };
  const auto meant = [only](const Route& route) { return only == nullptr || route.world == only; };
  // Whose memory was used past us may not be connected yet: it could not hear it.
  const std::int64_t until = clock.now() + Handshakes::kLongest;
  const auto begun = [&](const std::unique_ptr<Route>& route) {
    return meant(*route) && !route->handshake_done && used_directly(*route);
  };
  while (parts_.handshakes.pending() != 0 && clock.now() < until &&
         std::ranges::any_of(parts_.peers.registry().routes(), begun))
    pass_or_idle();
  // Said over every link, and again until it is heard: a peer that misses it would take us for lost. Some do not listen
  // now; nobody waits for them for long.
  const auto met = [](const Flow* flow) { return flow->sender.acknowledged() != 0 || flow->receiver.next() != 0; };
  const auto deaf = [&](const std::unique_ptr<Route>& route) {
    // Channels have taken leave one by one.
    return route->world != nullptr && meant(*route) &&
           (route->handshake_done || std::ranges::any_of(route->flows, met)) && !route->leave_heard &&
           may_hear(*route) && control_flow(*route) != nullptr && std::ranges::any_of(route->links, &Link::up);
  };
  const auto say = [this, &meant](const auto& wanted) {
    for (const auto& flow : parts_.peers.flows().all()) {
      if (flow->failed.load(std::memory_order_relaxed) || !meant(*flow->route) || !wanted(*flow->route)) continue;
      for (Link& link : flow->route->links) {
        if (link.up()) parts_.reports.send_notice(*flow, link, wire::Leave{}.header());
      }
    }
  };
  say(may_hear);
  const std::int64_t end = clock.now() + kMostLeave;
  std::int64_t said = clock.now();
  for (int i = 0; i < kMostLeavePasses && std::ranges::any_of(parts_.peers.registry().routes(), deaf); ++i) {
    if (clock.now() >= end) return;
    pass_or_idle();
    if (clock.now() - said < core_.deadline_floor) continue;
    said = clock.now();
    say([](const Route& route) { return !route.leave_heard && may_hear(route); });
  }
}

}  // namespace railyard::transport
