#include "transport/failover.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"

namespace railyard::transport {
namespace {

/// An operation with which so many links broke, a chunk of it alone on each, is at fault.
constexpr std::uint8_t kMostTrials = 3;

}  // namespace

// ---- What the rails report ----

void Failover::on_lost(const RailState& rail, const fabric::Event& event) {
  const Links::Ref found = parts_.links.find(rail.index, event.remote);
  if (found.route == nullptr) return;
  Route& route = *found.route;
  Link& link = route.links[found.index];
  LinkAttempts& attempts = link.attempts;
  attempts.refused = event.refused;
  attempts.unverified = event.unverified;
  attempts.unwanted = event.unwanted ? static_cast<std::uint8_t>(std::min(attempts.unwanted + 1, 100)) : 0;
  if (link.health.state == LinkState::trying) {
    if (link.health.on(LinkEvent::lost) == LinkAction::retry) parts_.reconnects.failed(route, link);
    return;
  }
  fail_link(route, link, LossCause::broken, rail.rail->describe_error(event.error));
  link.health.doubtful = event.blame != fabric::Blame::link;
  parts_.losses.begin_if_gone(route);
}

void Failover::on_rail_state(RailState& rail, bool down) {
  if (rail.down == down) return;
  rail.down = down;
  core_.trace.event({.kind = down ? EngineTrace::Kind::rail_down : EngineTrace::Kind::rail_up,
                     .rail = static_cast<std::uint16_t>(rail.index)});
  log_warn(rail.rail->in_log(), "its interface is {}", down ? "down" : "up again");
  if (down) fail_links_of(rail);
}

void Failover::fail_links_of(const RailState& rail) {
  for (const auto& route : parts_.peers.registry().routes()) {
    for (Link& link : route->links) {
      if (link.rail() == rail.index) fail_link(*route, link, LossCause::local_down);
    }
  }
}

// ---- A link dies ----

/// Marks what a flow had on the dead link: it waits for the target's word. Returns how many chunks that are.
std::uint32_t Failover::leave_link(Flow& flow, const Link& link) {
  const std::uint16_t index = flow.route->index_of(link);
  const std::uint32_t waiting = flow.sender.on_link_lost(index);
  Share& share = flow.shares[index];
  if (waiting > 0 || share.bytes != 0 || share.frames != 0) {
    share.unfenced = true;
    share.dead_epoch = link.health.epoch;
    share.fence_asked_at = 0;
  }
  return waiting;
}

void Failover::fail_link(Route& route, Link& link, LossCause cause, const std::string& why) {
  LinkHealth& health = link.health;
  if (health.state == LinkState::down || control_flow(route) == nullptr) return;
  const std::string reason = why.empty() ? to_string(cause) : fmt::format("{}: {}", to_string(cause), why);
  if (!core_.failover) {
    for (Flow* flow : route.flows) {
      parts_.completions.fail(*flow, Error(Status::rail_failed,
                                           fmt::format("the link to {} failed on rail {}: {}", route.who,
                                                       core_.rails[link.rail()].name(), reason),
                                           {route.peer, link.rail(), "link", flow->sender.acknowledged()}));
    }
    return;
  }
  switch (health.on(LinkEvent::lost)) {
    case LinkAction::leave:
      return leave(route, link, cause, reason);
    case LinkAction::retry:
      return parts_.reconnects.failed(route, link);
    default:
      return;
  }
}

void Failover::leave(Route& route, Link& link, LossCause cause, const std::string& reason) {
  LinkHealth& health = link.health;
  const bool ever_stood = health.stood || health.epoch != 0;
  std::uint32_t waiting = 0;
  std::uint64_t outstanding = 0;
  for (Flow* flow : route.flows) {
    if (flow->failed.load(std::memory_order_relaxed)) continue;
    waiting += leave_link(*flow, link);
    outstanding += flow->outstanding.load(std::memory_order_relaxed);
  }
  parts_.links.disconnect(link);
  health.cause = cause;
  health.doubtful = false;
  parts_.reconnects.back_off(route, link);
  health.since = core_.health_clock;
  health.state_at = health.lost_at = core_.clock->now();
  const auto left = std::ranges::count_if(route.links, &Link::up);
  ++core_.counts.links_lost;
  ++core_.rails.state(link.rail()).statistics.links_lost;
  core_.trace.event(
      {EngineTrace::Kind::link_down, route.peer, link.rail(), static_cast<std::uint8_t>(cause), 0, waiting});
  parts_.watched.watch(route);
  const std::string news = fmt::format("link to {} is down ({}); {} segments to move, {} of {} links left", route.who,
                                       reason, waiting, left, route.links.size());
  // A first connection that was not taken is tried again: nothing has been lost with it.
  bool& told = link.attempts.told;
  told |= outstanding != 0 && ever_stood;
  const LogRail rail = core_.rails[link.rail()].in_log();
  told ? log_warn(rail, "{}", news) : log_info(rail, "{}", news);
}

void Failover::fail_broken() {
  for (const Poster::FailedPost& post : parts_.poster.take_failed()) {
    Link& link = post.route->links[post.link];
    if (link.health.epoch == post.epoch) fail_link(*post.route, link, LossCause::broken, post.why);
  }
}

void Failover::fail_links(Route& route, LossCause cause) {
  for (Link& link : route.links) {
    if (link.up()) fail_link(route, link, cause);
  }
}

void Failover::ask_for_fences(Route& route, Link& link) {
  const std::uint16_t index = route.index_of(link);
  for (Flow* flow : route.flows) {
    if (flow->shares[index].unfenced && !flow->failed.load(std::memory_order_relaxed)) ask_for_fence(*flow, link);
  }
}

void Failover::ask_for_fence(Flow& flow, Link& link) {
  LinkHealth& health = link.health;
  Share& share = flow.share(link);
  if (share.fence_asked_at != 0 && core_.health_clock - share.fence_asked_at < link.deadline(core_.deadline_floor))
    return;
  // An interface that is up again is no news any more: the peer would give up what has just come back.
  const bool old = health.cause == LossCause::local_down && !core_.rails.state(link.rail()).down;
  const LossCause cause = old ? LossCause::broken : health.cause;
  const wire::Fence record{share.dead_epoch, ends_of(*flow.route, link), static_cast<std::uint8_t>(cause)};
  if (parts_.reports.send_notice(flow, record.header())) share.fence_asked_at = core_.health_clock;
}

void Failover::on_fenced(Flow& flow, wire::LinkEnds ends, std::uint32_t epoch, std::span<const std::byte> body) {
  wire::FencedBody report;
  if (ends.link >= flow.shares.size() || body.size() < sizeof report) {
    ++core_.counts.dropped_malformed;
    return;
  }
  std::memcpy(&report, body.data(), sizeof report);
  const auto bits = body.subspan(sizeof report);
  if (report.words > wire::kMaxWindow / 64U || bits.size() != report.words * sizeof(std::uint64_t)) {
    ++core_.counts.dropped_malformed;
    return;
  }
  const Share& share = flow.shares[ends.link];
  if (!share.unfenced || share.dead_epoch != epoch) return;  // an answer that came twice, or too late
  release_fenced(flow, flow.route->links[ends.link], report, bits);
}

/// The target has spoken: what its report lacks goes out again, what it has is finished. Writing that once more could
/// overwrite what the target's program has put there since.
void Failover::release_fenced(Flow& flow, Link& link, const wire::FencedBody& report, std::span<const std::byte> bits) {
  const std::uint16_t index = flow.route->index_of(link);
  flow.shares[index].unfenced = false;
  ++core_.counts.fences;
  const auto arrived = [&](std::uint32_t sequence) {
    const std::uint32_t ahead = sequence - report.next;
    if (ahead >= 0x80000000U) return true;
    if (ahead / 64U >= report.words) return false;
    std::uint64_t word = 0;
    std::memcpy(&word, bits.data() + ahead / 64U * sizeof word, sizeof word);
    return (word >> (ahead % 64U) & 1U) != 0;
  };
  flow.sender.on_fenced(index, arrived, [&](Segment& missing) {
    if (link.health.doubtful) note_fault(missing);
    parts_.transmitter.send_again(flow, missing);
  });
  core_.trace.event({EngineTrace::Kind::fenced, flow.peer, link.rail(), 0, report.next, flow.sender.replay().size()});
  log_info(core_.rails[link.rail()].in_log(), "{} has shut out the dead link: {} segments to send again",
           flow.route->who, flow.sender.replay().size());
}

/// The link that carried it broke, the target lacks it, and the rail cannot tell why.
void Failover::note_fault(Segment& segment) {
  Operation& operation = *segment.operation;
  if (operation.kind == Operation::Kind::frame || segment.voided) return;
  ++segment.faults;
  operation.doubted = true;
  if (segment.alone && !operation.cleared) ++operation.faults;
  if (operation.faults >= kMostTrials || segment.faults > kMostTrials)
    parts_.completions.fail(operation, FailureCause::bad_memory, segment.sequence);
}

void Failover::on_failed(Segment& segment, fabric::Blame blame, const std::string& why) {
  Completions& completions = parts_.completions;
  Flow& flow = *segment.operation->flow;
  Link& link = flow.route->links[segment.link];
  const bool current = segment.epoch == link.health.epoch && link.up();
  const bool direct = segment.operation->kind != Operation::Kind::frame && !segment.voided;
  // Our own buffers are always good: only what names a caller's or a peer's memory can be at fault.
  const bool guilty = direct && blame == fabric::Blame::operation;
  // While it still counts as in flight: a link that dies with something on it must be fenced.
  if (current && !guilty) fail_link(*flow.route, link, LossCause::broken, why);
  // What comes back from a link that was given up for another reason says nothing.
  const bool broke = segment.epoch == link.health.epoch && link.health.cause == LossCause::broken;
  if (direct && broke && blame == fabric::Blame::unknown) link.health.doubtful = true;
  if (guilty && !segment.finished && !flow.failed.load(std::memory_order_relaxed))
    completions.fail(*segment.operation, FailureCause::bad_memory, segment.sequence);
  Completions::let_go(segment);
  if (segment.finished || flow.failed.load(std::memory_order_relaxed)) return completions.give_up(segment);
  completions.leave_flight(segment, false);
  if (segment.operation->kind == Operation::Kind::atomic) {
    flow.sender.ended_unordered();
    completions.give_up_atomic(*segment.operation, guilty ? FailureCause::bad_memory : FailureCause::rail_failed);
    return completions.give_up(segment);
  }
  if (segment.again) return parts_.transmitter.send_again(flow, segment);
  // The rail itself says that it has not landed. Where its link has died, `release_fenced` finds it.
  if (guilty && current && link.up()) return parts_.transmitter.send_again(flow, segment);
  if (segment.operation->sequenced()) return;
  if (flow.shares[segment.link].unfenced) {
    flow.sender.park(segment);
  } else {
    parts_.transmitter.send_again(flow, segment);
  }
}

}  // namespace railyard::transport
