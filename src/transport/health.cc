#include "transport/health.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/log.hpp"

namespace railyard::transport {
namespace {

constexpr std::int64_t kLookEvery = 1'000'000;  // nanoseconds between two looks at the links
constexpr std::int64_t kMostStep = 10'000'000;  ///< that the health clock takes at once: longer gaps were our own
/// A link that answers but delivers nothing for so many deadlines is stuck.
constexpr std::int64_t kStuckDeadlines = 4;
constexpr std::int64_t kStuckFloors = 25;
constexpr std::int64_t kMuteFloors = 8;                 ///< of least deadlines in which a ping must be answered
constexpr std::int64_t kStuckUnknown = 10'000'000'000;  ///< before the first round trip is known
/// Rails are asked after a silent peer's process so many times while its time runs out.
constexpr std::int64_t kLivenessParts = 16;
constexpr std::uint32_t kUnansweredToBelieve = 3;

/// Nothing of the flow's is under way.
bool is_at_rest(const Flow& flow) {
  if (flow.failed.load(std::memory_order_relaxed)) return true;
  if (flow.outstanding.load(std::memory_order_relaxed) != 0 || flow.sender.has_unacknowledged() ||
      flow.sender.has_queued())
    return false;
  if (flow.receiver.has_refusals()) return false;
  return std::ranges::none_of(flow.shares, &Share::unfenced);
}

/// The peer's process takes our links and does not answer on them: a peer that has ended this route does so.
bool forgotten(const Route& route) {
  return route.unanswered >= kUnansweredToBelieve && route.unanswered_since > route.heard_at;
}

}  // namespace

std::int64_t Health::due() const { return core_.failover ? looked_at_ + kLookEvery : INT64_MAX; }

void Health::look() {
  const std::int64_t passed = core_.now - looked_at_;
  core_.health_clock += std::min(passed, kMostStep);
  if (passed > kMostStep) away_.fetch_add(passed - kMostStep, std::memory_order_relaxed);
  looked_at_ = core_.now;
  parts_.watched.look([this](Route& route) {
    look_after(route);
    return !at_rest(route);
  });
}

bool Health::at_rest(const Route& route) const {
  if (is_silent(route)) return true;
  if (route.probe.on || route.concerned_since != 0 || !route.pongs.empty()) return false;
  if (!std::ranges::all_of(route.flows, [](const Flow* flow) { return is_at_rest(*flow); })) return false;
  // The peer waits for that answer, and it may be our own links that keep it from going out.
  if (parts_.fence_requests.any(route)) return false;
  if (used_directly(route)) {
    // No operation would come along and ask: a link that ended is followed up here and now.
    const bool whole = std::ranges::all_of(route.links, &Link::up);
    if (!whole || !route.handshake_done) return false;
  }
  return std::ranges::none_of(route.links,
                              [](const Link& link) { return link.health.state == LinkState::trying || !link.idle(); });
}

void Health::look_after(Route& route) {
  if (route.loss.on) return;
  if (!route.handshake_done && !route.probe.on && used_directly(route)) parts_.probes.start(route, false);
  for (Flow* flow : route.flows) {
    if (!flow->failed.load(std::memory_order_relaxed)) look_at_head(*flow);
  }
  if (route.probe.on) look_at_answers(route);
  // The peer asks and no link takes the answer: their queues are full of what does not complete.
  const std::int64_t unanswered = core_.health_clock - route.pongs_since;
  if (!route.pongs.empty() && fail_stuck(route, unanswered, kMuteFloors * core_.deadline_floor))
    route.pongs_since = core_.health_clock;
  for (Link& link : route.links) {
    if (is_silent(route)) return;
    look_after(route, link);
  }
  look_at_silence(route);
}

void Health::look_after(Route& route, Link& link) {
  parts_.failover.ask_for_fences(route, link);
  switch (link.health.state) {
    case LinkState::connecting:
      return look_at_connection(route, link);
    case LinkState::up:
    case LinkState::suspect:
      return look_at_deliveries(route, link);
    case LinkState::trying:
      return parts_.reconnects.tend(route, link);
    case LinkState::down:
      return parts_.reconnects.try_link(route, link);
  }
}

/// The oldest unacknowledged segment is what everything else waits for: its link is the one to doubt.
void Health::look_at_head(Flow& flow) {
  Route& route = *flow.route;
  const FlowSender& sender = flow.sender;
  const Segment* head = sender.oldest();
  if (head == nullptr && sender.has_queued() && !sender.has_unordered() && sender.next_sequence() == flow.head_seen) {
    // Everything sent was acknowledged, and nothing goes out: the rails are full of what never completes. Not where no
    // connection has come about yet.
    if (std::ranges::none_of(route.links, [](const Link& link) { return link.health.stood; })) return;
    if (route.stalled) return;  // it is the peer that does not take anything
    const std::int64_t age = core_.health_clock - flow.head_since;
    if (fail_stuck(route, age, 2 * parts_.reconnects.attempt_time())) flow.head_since = core_.health_clock;
    return;
  }
  if (head == nullptr || head->sequence != flow.head_seen || head->lost || head->again) {
    flow.head_since = core_.health_clock;
    flow.head_seen = head != nullptr ? head->sequence : sender.next_sequence();
    return;
  }
  Link& link = route.links[head->link];
  if (!link.up()) return;
  const std::int64_t age = core_.health_clock - flow.head_since;
  if (age >= link.deadline(core_.deadline_floor) / 2) parts_.probes.suspect(route, link);
  if (link.pings.answered_at > flow.head_since && is_stuck(link, age, stuck_after(link)))
    parts_.failover.fail_link(route, link, LossCause::stuck);
}

/// A first connection that does not come about is a lost link: a ping shows whether it has. A peer that has said
/// nothing yet over any link is not ready: its machine keeps the connection for it.
void Health::look_at_connection(Route& route, Link& link) {
  const std::int64_t age = core_.health_clock - link.health.since;
  if (age < parts_.reconnects.attempt_time() || parts_.probes.ask(route, link)) return;
  parts_.failover.fail_broken();  // that ping may have shown that it is
  const bool heard = route.heard_at > link.health.since || route.handshake_done;
  if (!heard && age < core_.peer_timeout / 4) return;
  parts_.failover.fail_link(route, link, LossCause::unconnected);
}

/// Reads and relaxed writes have no place in the sequence: bytes must be delivered now and then.
void Health::look_at_deliveries(Route& route, Link& link) {
  LinkDeliveries& deliveries = link.deliveries;
  if (link.bytes_in_flight() == 0 || link.delivered() != deliveries.seen) {
    deliveries.seen = link.delivered();
    deliveries.since = core_.health_clock;
    return;
  }
  const std::int64_t age = core_.health_clock - deliveries.since;
  if (age >= link.deadline(core_.deadline_floor) / 2) parts_.probes.suspect(route, link);
  if (link.pings.answered_at > deliveries.since && is_stuck(link, age, stuck_after(link)))
    parts_.failover.fail_link(route, link, LossCause::stuck);
}

void Health::look_at_answers(Route& route) {
  for (std::uint64_t silent = parts_.probes.judge(route); silent != 0; silent &= silent - 1) {
    Link& link = route.links[static_cast<std::size_t>(std::countr_zero(silent))];
    parts_.failover.fail_link(route, link, LossCause::silent);
  }
}

/// What the rails say of the peer's process: one that knows is enough. Between two attempts there is no link to ask
/// about; then they are asked with the next.
fabric::Liveness Health::liveness(Route& route) {
  auto found = fabric::Liveness::unknown;
  for (const Link& link : route.links) {
    if (link.health.state == LinkState::down) continue;
    route.liveness_asked = core_.health_clock;
    const auto answer = core_.rails[link.rail()].liveness(link.remote());
    if (answer == fabric::Liveness::alive) return answer;
    if (answer == fabric::Liveness::gone) found = answer;
  }
  return found;
}

/// A peer that is there and silent is waited for: its operations have deadlines of their own.
void Health::note_stall(Route& route, std::int64_t silence) {
  route.alive_at = core_.health_clock;
  route.concerned_since = 0;
  if (silence < core_.peer_timeout / 2 || std::exchange(route.stalled, true)) return;
  ++core_.counts.peers_stalled;
  core_.trace.event(
      {.kind = EngineTrace::Kind::peer_stalled, .peer = route.peer, .more = static_cast<std::uint64_t>(silence)});
  log_warn("{} is stalled: no answer for {:.1f} s, but its process lives; what waits for it waits on", route.who,
           static_cast<double>(silence) * 1e-9);
}

void Health::look_at_silence(Route& route) {
  if (is_silent(route)) return;
  const std::int64_t timeout = core_.peer_timeout;
  const std::int64_t now = core_.health_clock;
  if (route.stalled && route.heard_at > route.alive_at) {
    route.stalled = false;
    log_warn("{} answers again", route.who);
  }
  if (route.heard_at >= route.concerned_since) route.concerned_since = 0;
  if (route.concerned_since == 0 && !owes(route)) {
    route.owed_since = now;
    return;
  }
  // Nothing was to be heard before something was owed.
  const std::int64_t heard = std::max(route.heard_at, route.owed_since);
  if (const std::int64_t unheard = now - heard;
      unheard >= timeout / kLivenessParts && now - route.liveness_asked >= timeout / kLivenessParts) {
    switch (liveness(route)) {
      case fabric::Liveness::gone:
        return parts_.losses.begin(route, "its process is gone");
      case fabric::Liveness::alive:
        if (unheard >= timeout && forgotten(route))
          return parts_.losses.begin(route, "its process lives, and knows nothing of this one any more");
        // Silent is who was asked. Where no link has taken a question, it is our own that hang.
        if (unheard >= timeout / 2 && route.asked_at <= heard) parts_.failover.fail_links(route, LossCause::stuck);
        note_stall(route, unheard);
        break;
      case fabric::Liveness::unknown:
        break;
    }
  }
  const std::int64_t sign = std::max(heard, route.alive_at);
  const std::int64_t silence = now - sign;
  if (silence < timeout / 2) return;
  if (silence >= timeout) {
    const bool turned_away =
        std::ranges::any_of(route.links, [](const Link& link) { return link.attempts.unverified; });
    return parts_.losses.begin(
        route, fmt::format("silent for {:.1f} s, and nothing says that its process lives{}",
                           static_cast<double>(silence) * 1e-9,
                           turned_away ? " (connections to it are refused: by a packet filter, or by another machine "
                                         "at its address, if it lives)"
                                       : ""));
  }
  if (route.renewed_for == sign) return;
  // Half of its time is over: connections that lost what they carried, or wait ever longer to send it again, are made
  // anew.
  route.renewed_for = sign;
  parts_.failover.fail_links(route, LossCause::mute);
}

std::int64_t Health::time_to_loss(const Route& route) const {
  if (route.loss.on || route.over) return 0;
  if (!core_.failover || (route.concerned_since == 0 && !owes(route))) return INT64_MAX;
  const std::int64_t heard = std::max(route.heard_at, route.owed_since);
  const std::int64_t sign = forgotten(route) ? heard : std::max(heard, route.alive_at);
  return std::max<std::int64_t>(0, core_.peer_timeout - (core_.health_clock - sign));
}

std::int64_t Health::stuck_after(const Link& link) const {
  if (!link.knows_trip()) return kStuckUnknown;
  // Longer with every epoch: what is slow, not stuck, would be given up again before it delivers anything.
  const std::int64_t grown = std::min(link.attempts.back_off, core_.peer_timeout / 4);
  return std::max({kStuckDeadlines * link.deadline(core_.deadline_floor), kStuckFloors * core_.deadline_floor, grown});
}

/// Nothing has come of what the link was given for `age`. Where the rail knows that it carries, it is the peer that has
/// not come to it: that is given longer, but not for ever.
bool Health::is_stuck(Link& link, std::int64_t age, std::int64_t limit) const {
  return age >= limit && (age >= core_.peer_timeout / 2 || !parts_.probes.carries(link));
}

/// Gives up every link that is. Whether any was.
bool Health::fail_stuck(Route& route, std::int64_t age, std::int64_t limit) {
  if (age < limit) return false;
  bool given_up = false;
  for (Link& link : route.links) {
    if (!link.up() || !is_stuck(link, age, limit)) continue;
    parts_.failover.fail_link(route, link, LossCause::stuck);
    given_up = true;
  }
  return given_up;
}

}  // namespace railyard::transport
