/// What happens when a link dies and when it comes back: docs/failover.md.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

constexpr std::int64_t kFirstBackOff = 100'000'000;
constexpr std::int64_t kMostBackOff = 10'000'000'000;
constexpr std::int64_t kMostPause = 1'000'000'000;  ///< between two attempts that fail
constexpr std::int64_t kSteady = 60'000'000'000;    ///< of life without a fault, that halves the back-off
constexpr std::uint8_t kAnswersToRejoin = 3;
constexpr std::uint32_t kAttemptsToWarn = 3;

std::int64_t next_back_off(std::int64_t before, std::int64_t lived) {
  if (before == 0) return kFirstBackOff;
  const std::int64_t halvings = std::min<std::int64_t>(lived / kSteady, 20);
  return halvings > 0 ? std::max(before >> halvings, kFirstBackOff) : std::min(2 * before, kMostBackOff);
}

}  // namespace

fabric::LinkTag Engine::tag_of(const Route& route, const Link& link) {
  const std::uint16_t index = route.index_of(link);
  return {RouteName::of_link(route.name.out, index), link.health.epoch, RouteName::of_link(route.name.in, index),
          route.key.traffic_class()};
}

// ---- What the rails report ----

void Engine::on_lost(std::size_t rail, const fabric::Event& event) {
  auto& refs = rail_states_[rail].links;
  if (event.remote >= refs.size() || refs[event.remote].route == nullptr) return;
  Route& route = *refs[event.remote].route;
  Link& link = route.links[refs[event.remote].index];
  link.health.refused = event.refused;
  link.health.unverified = event.unverified;
  link.health.unwanted = event.unwanted ? static_cast<std::uint8_t>(std::min(link.health.unwanted + 1, 100)) : 0;
  if (link.health.state == LinkState::trying) {
    if (link.health.on(LinkEvent::lost) == LinkAction::retry) attempt_failed(route, link);
    return;
  }
  fail_link(route, link, LossCause::broken, rails_[rail]->describe_error(event.error));
  link.health.doubtful = event.blame != fabric::Blame::link;
  lose_if_gone(route);
}

void Engine::on_left(const fabric::LinkTag& tag) {
  if (Route* const route = registry_.find_inbound(tag.id)) check_on(*route);
}

void Engine::on_rail_state(std::size_t rail, bool down) {
  RailState& state = rail_states_[rail];
  if (state.down == down) return;
  state.down = down;
  trace_.event({.kind = down ? EngineTrace::Kind::rail_down : EngineTrace::Kind::rail_up,
                .rail = static_cast<std::uint16_t>(rail)});
  log_warn(rails_[rail]->in_log(), "its interface is {}", down ? "down" : "up again");
  if (!down) return;
  for (const auto& route : registry_.routes()) {
    for (Link& link : route->links) {
      if (link.rail() == rail) fail_link(*route, link, LossCause::local_down, "");
    }
  }
}

// ---- A link dies ----

/// Marks what a flow had on the dead link: it waits for the target's word. Returns how many chunks that are.
std::uint32_t Engine::leave_link(Flow& flow, const Link& link) {
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

void Engine::fail_link(Route& route, Link& link, LossCause cause, const std::string& why) {
  LinkHealth& health = link.health;
  if (health.state == LinkState::down || control_flow(route) == nullptr) return;
  const std::string reason = why.empty() ? to_string(cause) : fmt::format("{}: {}", to_string(cause), why);
  if (!failover_) {
    for (Flow* flow : route.flows) {
      fail_flow(*flow, Error(Status::rail_failed,
                             fmt::format("the link to {} failed on rail {}: {}", route.who, rails_[link.rail()]->name(),
                                         reason),
                             {route.peer, link.rail(), "link", flow->sender.acknowledged()}));
    }
    return;
  }
  switch (health.on(LinkEvent::lost)) {
    case LinkAction::leave:
      return leave(route, link, cause, reason);
    case LinkAction::retry:
      return attempt_failed(route, link);
    default:
      return;
  }
}

void Engine::leave(Route& route, Link& link, LossCause cause, const std::string& reason) {
  LinkHealth& health = link.health;
  const bool ever_stood = health.stood || health.epoch != 0;
  std::uint32_t waiting = 0;
  std::uint64_t outstanding = 0;
  for (Flow* flow : route.flows) {
    if (flow->failed.load(std::memory_order_relaxed)) continue;
    waiting += leave_link(*flow, link);
    outstanding += flow->outstanding.load(std::memory_order_relaxed);
  }
  disconnect(link);
  health.cause = cause;
  health.doubtful = false;
  health.back_off = next_back_off(health.back_off, beat_ - health.since);
  health.since = health.lost_at = beat_;
  const auto left = std::ranges::count_if(route.links, &Link::up);
  // With nothing left, the next attempt cannot wait.
  health.next_try = beat_ + (left > 0 ? health.back_off : 0);
  ++counts_.links_lost;
  trace_.event({EngineTrace::Kind::link_down, route.peer, link.rail(), static_cast<std::uint8_t>(cause), 0, waiting});
  watch(route);
  const std::string news = fmt::format("link to {} is down ({}); {} segments to move, {} of {} links left", route.who,
                                       reason, waiting, left, route.links.size());
  // A first connection that was not taken is tried again: nothing has been lost with it.
  health.told |= outstanding != 0 && ever_stood;
  const LogRail rail = rails_[link.rail()]->in_log();
  health.told ? log_warn(rail, "{}", news) : log_info(rail, "{}", news);
}

void Engine::fail_links(Route& route, LossCause cause) {
  for (Link& link : route.links) {
    if (link.up()) fail_link(route, link, cause, "");
  }
}

void Engine::ask_for_fences(Route& route, Link& link) {
  const std::uint16_t index = route.index_of(link);
  for (Flow* flow : route.flows) {
    if (flow->shares[index].unfenced && !flow->failed.load(std::memory_order_relaxed)) ask_for_fence(*flow, link);
  }
}

/// Asks the target, over whatever link there is, to shut the dead one out; again and again until it has. Each flow asks
/// for itself: what has arrived is told flow by flow.
void Engine::ask_for_fence(Flow& flow, Link& link) {
  LinkHealth& health = link.health;
  Share& share = flow.share(link);
  if (share.fence_asked_at != 0 && beat_ - share.fence_asked_at < link.deadline(deadline_floor_)) return;
  // An interface that is up again is no news any more: the peer would give up what has just come back.
  const bool old = health.cause == LossCause::local_down && !rail_states_[link.rail()].down;
  const LossCause cause = old ? LossCause::broken : health.cause;
  const wire::RecordHeader record{wire::RecordKind::fence, static_cast<std::uint8_t>(cause), 0, share.dead_epoch,
                                  ends_of(*flow.route, link).pack()};
  if (send_notice(flow, record)) share.fence_asked_at = beat_;
}

/// The target has spoken: what its report lacks goes out again, what it has is finished. Writing that once more could
/// overwrite what the target's program has put there since.
void Engine::release_fenced(Flow& flow, Link& link, const wire::FencedBody& report, std::span<const std::byte> bits) {
  const std::uint16_t index = flow.route->index_of(link);
  flow.shares[index].unfenced = false;
  ++counts_.fences;
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
    queue_again(flow, missing);
  });
  trace_.event({EngineTrace::Kind::fenced, flow.peer, link.rail(), 0, report.next, flow.sender.replay().size()});
  log_info(rails_[link.rail()]->in_log(), "{} has shut out the dead link: {} segments to send again", flow.route->who,
           flow.sender.replay().size());
}

void Engine::queue_again(Flow& flow, Segment& segment) {
  if (flow.sender.send_again(segment)) activate(flow);
}

/// An operation of the segment came back undone.
void Engine::segment_came_back(Flow& flow, Segment& segment, fabric::Blame blame, const std::string& why) {
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
    fail_operation(*segment.operation, FailureCause::bad_memory, segment.sequence);
  let_go(segment);
  if (segment.finished || flow.failed.load(std::memory_order_relaxed)) return give_up_segment(&segment);
  leave_flight(segment, false);
  if (segment.operation->kind == Operation::Kind::atomic) {
    flow.sender.ended_unordered();
    give_up_atomic(*segment.operation, guilty ? FailureCause::bad_memory : FailureCause::rail_failed);
    return give_up_segment(&segment);
  }
  if (segment.again) return queue_again(flow, segment);
  // The rail itself says that it has not landed. Where its link has died, `release_fenced` finds it.
  if (guilty && current && link.up()) return queue_again(flow, segment);
  if (segment.operation->sequenced()) return;
  if (flow.shares[segment.link].unfenced) {
    flow.sender.park(segment);
  } else {
    queue_again(flow, segment);
  }
}

// ---- A link comes back ----

void Engine::try_link(Route& route, Link& link) {
  LinkHealth& health = link.health;
  if (health.on(LinkEvent::due) != LinkAction::connect) return;
  const auto peer = find_peer_(route.peer);
  ++health.epoch;
  health.answers = 0;
  health.asked = 0;
  health.vouched_since = 0;
  health.epoch_began = route.rounds;
  health.refused = health.unverified = false;
  health.since = beat_;
  const auto connected = peer ? connect_link(route, link, *peer) : Result<void>(peer.error().copy());
  if (connected) {
    log_debug(rails_[link.rail()]->in_log(), "trying to reach {}, epoch {}", route.who, health.epoch + 1);
    return;
  }
  health.on(LinkEvent::unreachable);
  log_info("{}: {}", route.who, connected.error().message());
  health.next_try = beat_ + kMostPause;
}

void Engine::tend_attempt(Route& route, Link& link) {
  LinkHealth& health = link.health;
  if (health.answers >= kAnswersToRejoin) {
    if (health.on(LinkEvent::proven) == LinkAction::rejoin) announce_return(route, link);
    return;
  }
  const bool overdue = now_ - health.asked_at >= link.deadline(deadline_floor_);
  if (health.asked == 0 || overdue) ask(route, link);
  if (health.state == LinkState::trying && beat_ - health.since >= attempt_time())
    fail_link(route, link, LossCause::unconnected, "");
}

void Engine::attempt_failed(Route& route, Link& link) {
  LinkHealth& health = link.health;
  if (health.stood && health.answers == 0) {
    if (route.heard_at > route.unanswered_since) route.unanswered = 0;
    if (route.unanswered++ == 0) route.unanswered_since = beat_;
  }
  disconnect(link);
  log_debug(rails_[link.rail()]->in_log(), "no success with {}{}", route.who,
            health.refused ? ", nobody is there" : "");
  health.since = beat_;
  // An attempt is cheap: what may grow beyond a second is only the time that a link which came and went must wait. And
  // with nothing left, there is nothing to spare by waiting longer.
  const bool alone = std::ranges::none_of(route.links, &Link::up);
  const std::int64_t pause = std::min(kFirstBackOff << std::min<std::uint32_t>(health.failures++, 10), kMostPause);
  health.next_try = beat_ + (alone ? kFirstBackOff : pause);
  if (lose_if_gone(route)) return;
  // A link that never stood was not missed at first: the peer may not have been ready.
  if (health.failures == kAttemptsToWarn && !health.told) {
    health.told = true;
    log_warn(rails_[link.rail()]->in_log(), "still no connection to {}: trying on", route.who);
  }
}

void Engine::announce_return(Route& route, Link& link) {
  LinkHealth& health = link.health;
  health.failures = 0;
  health.unwanted = 0;
  health.since = health.delivered_since = beat_;
  ++counts_.links_rejoined;
  trace_.event({.kind = EngineTrace::Kind::link_up,
                .peer = route.peer,
                .rail = link.rail(),
                .more = static_cast<std::uint64_t>(beat_ - health.lost_at)});
  const std::string news = fmt::format("link to {} is back after {:.3f} s, in epoch {}", route.who,
                                       static_cast<double>(beat_ - health.lost_at) * 1e-9, health.epoch + 1);
  const LogRail rail = rails_[link.rail()]->in_log();
  std::exchange(health.told, false) ? log_warn(rail, "{}", news) : log_info(rail, "{}", news);
}

// ---- Is the peer still there? ----

void Engine::check_on(Route& route) {
  if (!failover_ || control_flow(route) == nullptr || route.loss.on) return;
  watch(route);
  if (route.concerned_since == 0) {  // else it is being found out: its time runs already
    route.concerned_since = beat_;
    if (!owes(route)) route.heard_at = beat_ - 1;  // nothing was to be heard until now
  }
  if (!route.probe.on) start_probe(route, false);
}

void Engine::check_on(int peer) {
  if (const auto found = flow(peer)) check_on(*(*found)->route);
}

void Engine::use_directly(Flow& flow) {
  if (flow.direct.exchange(true, std::memory_order_relaxed)) return;
  if (!failover_ || flow.route->handshake_done || flow.failed.load(std::memory_order_relaxed)) return;
  pending_handshakes_.fetch_add(1, std::memory_order_relaxed);
  watch(*flow.route);
}

/// The peer has answered, or never will.
void Engine::finish_handshake(Route& route) {
  if (std::exchange(route.handshake_done, true)) return;
  // Release: whoever sees that there are no more may leave.
  if (used_directly(route)) pending_handshakes_.fetch_sub(1, std::memory_order_release);
}

void Engine::spread_gossip() {
  for (const int peer : gossip_) {
    const wire::RecordHeader record{wire::RecordKind::lost, 0, 0, 0, static_cast<std::uint64_t>(peer)};
    for (const auto& flow : flow_storage_) {
      if (!flow->failed.load(std::memory_order_relaxed)) send_notice(*flow, record);
    }
  }
  gossip_.clear();
}

}  // namespace railyard::transport
