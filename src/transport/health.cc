/// How the links are: who is late, who answers, who must be given up. Looked at about once a millisecond, and only
/// where something is under way.
///
/// A unit that is overdue says that its peer or its link is in trouble, not which. So every link is asked at once: one
/// that stays silent while another answers is dead. Where none answers, the peer is busy with something else, or gone:
/// only `RAILYARD_PEER_TIMEOUT_MS` of that ends the wait.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

constexpr std::int64_t kMostStep = 10'000'000;  ///< that the health clock takes at once: longer gaps were our own
constexpr std::uint32_t kMostDoublings = 4;     ///< of the time between two rounds that nobody answers
/// A link that answers but delivers nothing for so many deadlines is stuck.
constexpr std::int64_t kStuckDeadlines = 4;
constexpr std::int64_t kStuckFloors = 25;
constexpr std::int64_t kAttemptFloors = 25;
constexpr std::int64_t kLeastAttempt = 200'000'000;
constexpr std::int64_t kMuteFloors = 8;                 ///< of least deadlines in which a ping must be answered
constexpr std::int64_t kStuckUnknown = 10'000'000'000;  ///< before the first round trip is known

}  // namespace

void Engine::watch(Route& route) {
  if (route.watched) return;
  route.watched = true;
  route.heard_at = beat_;
  for (Flow* flow : route.flows) flow->head_since = beat_;
  for (Link& link : route.links) {
    link.health.delivered_since = beat_;
    if (!link.health.stood) link.health.since = beat_;
  }
  watched_.push_back(&route);
  nudge();  // who sleeps would look after the links too late
}

bool Engine::at_rest(const Flow& flow) const {
  if (flow.failed.load(std::memory_order_relaxed)) return true;
  if (flow.outstanding.load(std::memory_order_relaxed) != 0 || !flow.unacknowledged.empty() || !flow.queue.empty())
    return false;
  if (!flow.refusals.empty()) return false;
  return std::ranges::none_of(flow.shares, &Share::unfenced);
}

bool Engine::at_rest(const Route& route) const {
  if (speaker(route) == nullptr) return true;
  if (route.probe.on || route.concerned_since != 0 || !route.pongs.empty()) return false;
  if (!std::ranges::all_of(route.flows, [this](const Flow* flow) { return at_rest(*flow); })) return false;
  if (used_directly(route)) {
    // No operation would come along and ask: a link that ended is followed up here and now.
    const bool whole = std::ranges::all_of(route.links, &Link::up);
    if (!whole || !route.acquainted) return false;
  }
  return std::ranges::none_of(route.links,
                              [](const Link& link) { return link.health.state == LinkState::trying || !link.idle(); });
}

void Engine::look_after_links() {
  beat_ += std::min(now_ - looked_at_, kMostStep);
  looked_at_ = now_;
  for (std::size_t i = 0; i < watched_.size();) {
    Route& route = *watched_[i];
    look_after(route);
    if (!at_rest(route)) {
      ++i;
      continue;
    }
    route.watched = false;
    watched_[i] = watched_.back();
    watched_.pop_back();
  }
}

bool Engine::used_directly(const Route& route) {
  return std::ranges::any_of(route.flows,
                             [](const Flow* flow) { return flow->direct.load(std::memory_order_relaxed); });
}

/// A peer that has heard of us says goodbye when it leaves; of one that has not, only the end of its links would be
/// seen, and a rank that left in peace would pass for a lost one. No answer means nothing: the peer may be busy.
void Engine::make_acquaintance(Route& route) {
  if (!route.acquainted && !route.probe.on && used_directly(route)) start_probe(route, false);
}

void Engine::look_after(Route& route) {
  make_acquaintance(route);
  for (Flow* flow : route.flows) {
    if (!flow->failed.load(std::memory_order_relaxed)) look_at_head(*flow);
  }
  if (route.probe.on) judge(route);
  // The peer asks and no link takes the answer: their queues are full of what does not complete.
  if (!route.pongs.empty() && beat_ - route.pongs_since >= kMuteFloors * deadline_floor_) {
    route.pongs_since = beat_;
    fail_links(route, LossCause::stuck);
  }
  for (Link& link : route.links) {
    if (speaker(route) == nullptr) return;
    LinkHealth& health = link.health;
    ask_for_fences(route, link);
    switch (health.state) {
      case LinkState::up:
        link.health.stood ? look_at_deliveries(route, link) : look_at_connection(route, link);
        break;
      case LinkState::trying:
        tend_attempt(route, link);
        break;
      case LinkState::down:
        if (!rail_states_[link.rail()].down && beat_ >= health.next_try) try_link(route, link);
        break;
    }
  }
  look_at_silence(route);
}

/// The oldest unacknowledged unit is what everything else waits for: its link is the one to doubt.
void Engine::look_at_head(Flow& flow) {
  const Unit* head = flow.unacknowledged.head();
  if (head == nullptr && !flow.queue.empty() && flow.out_of_sequence == 0 && flow.next_sequence == flow.head_seen) {
    // Everything sent was acknowledged, and nothing goes out: the rails are full of what never completes.
    if (beat_ - flow.head_since < 2 * attempt_time()) return;
    flow.head_since = beat_;
    return fail_links(*flow.route, LossCause::stuck);
  }
  if (head == nullptr || head->sequence != flow.head_seen || head->lost || head->again) {
    flow.head_since = beat_;
    flow.head_seen = head != nullptr ? head->sequence : flow.next_sequence;
    return;
  }
  Link& link = flow.route->links[head->link];
  if (!link.up()) return;
  const std::int64_t age = beat_ - flow.head_since;
  if (age >= link.deadline(deadline_floor_) / 2) suspect(*flow.route, link);
  if (age >= stuck_after(link) && link.health.answered_at > flow.head_since) {
    fail_link(*flow.route, link, LossCause::stuck, "");
  }
}

/// A first connection that does not come about is a lost link: a ping shows whether it has.
void Engine::look_at_connection(Route& route, Link& link) {
  if (beat_ - link.health.since < attempt_time() || ask(route, link)) return;
  fail_link(route, link, LossCause::unconnected, "");
}

/// Reads and relaxed writes have no place in the sequence: bytes must be delivered now and then.
void Engine::look_at_deliveries(Route& route, Link& link) {
  LinkHealth& health = link.health;
  if (link.bytes_in_flight() == 0 || link.delivered() != health.delivered_seen) {
    health.delivered_seen = link.delivered();
    health.delivered_since = beat_;
    return;
  }
  const std::int64_t age = beat_ - health.delivered_since;
  if (age >= link.deadline(deadline_floor_) / 2) suspect(route, link);
  if (age >= stuck_after(link) && health.answered_at > health.delivered_since) {
    fail_link(route, link, LossCause::stuck, "");
  }
}

void Engine::look_at_silence(Route& route) {
  if (speaker(route) == nullptr) return;
  if (route.heard_at >= route.concerned_since) route.concerned_since = 0;
  const bool owes = route.concerned_since != 0 || std::ranges::any_of(route.flows, [](const Flow* flow) {
                      return flow->outstanding.load(std::memory_order_relaxed) != 0;
                    });
  const std::int64_t silence = beat_ - route.heard_at;
  if (!owes || silence < peer_timeout_ / 2) return;
  if (silence >= peer_timeout_) {
    return lose_peer(route, fmt::format("silent for {:.1f} s", static_cast<double>(silence) * 1e-9));
  }
  if (route.renewed_for == route.heard_at) return;
  // Half of its time is over: connections that lost what they carried, or wait ever longer to send it again, are made
  // anew.
  route.renewed_for = route.heard_at;
  fail_links(route, LossCause::mute);
}

/// How long an attempt to connect may take: many deadlines, and no less than any network needs.
std::int64_t Engine::attempt_time() const { return std::max(kAttemptFloors * deadline_floor_, kLeastAttempt); }

std::int64_t Engine::stuck_after(const Link& link) const {
  if (!link.knows_trip()) return kStuckUnknown;
  // Longer with every life: what is slow, not stuck, would be given up again before it delivers anything.
  const std::int64_t grown = std::min(link.health.back_off, peer_timeout_ / 4);
  return std::max({kStuckDeadlines * link.deadline(deadline_floor_), kStuckFloors * deadline_floor_, grown});
}

void Engine::suspect(Route& route, Link& link) {
  if (route.probe.on || beat_ - route.probe.ended < link.deadline(deadline_floor_)) return;
  if (!link.health.suspect) {
    link.health.suspect = true;
    ++counts_.links_suspected;
    log_info("{} is late on rail {} ({} ms): asking all links", route.who, rails_[link.rail()]->name(),
             link.deadline(deadline_floor_) / 1'000'000);
  }
  start_probe(route, false);
}

void Engine::start_probe(Route& route, bool answering) {
  route.probe.on = true;
  route.probe.answering = answering;
  route.probe.first_round = route.rounds + 1;
  route.probe.repeats = 0;
  route.probe.since = beat_;
  route.probe.first_answer = 0;
  watch(route);
}

/// Sends a ping on the link. A link too full to take it counts as asked: what fills it is what is overdue.
bool Engine::ask(Route& route, Link& link) {
  const std::uint32_t round = ++route.rounds;
  const std::uint8_t answering = route.probe.on && route.probe.answering ? 1 : 0;
  Flow* const flow = speaker(route);
  if (flow == nullptr) return false;
  const bool sent =
      send_notice(*flow, link, {wire::RecordKind::ping, answering, 0, round, place_of(route, link).pack()});
  if (!link.up() && link.health.state != LinkState::trying) return false;  // that was how we learnt that it is gone
  if (!sent && !link.health.stood) return false;                           // still being connected
  link.health.asked = round;
  link.health.asked_at = now_;
  return true;
}

void Engine::judge(Route& route) {
  Probe& probe = route.probe;
  bool open = false;
  bool asked_any = false;
  for (Link& link : route.links) {
    LinkHealth& health = link.health;
    if (!link.up()) continue;
    if (health.asked < probe.first_round) ask(route, link);
    if (!link.up() || health.asked < probe.first_round) continue;
    asked_any = true;
    if (health.answered >= probe.first_round) continue;
    const std::int64_t patience = link.deadline(deadline_floor_) / 2;
    const bool overdue = beat_ - probe.since >= patience;
    if (overdue && probe.first_answer != 0 && beat_ - probe.first_answer >= patience) {
      fail_link(route, link, LossCause::silent, "");
    } else {
      open = true;
    }
  }
  if (speaker(route) == nullptr) return;
  const std::int64_t again = route.links.front().deadline(deadline_floor_) << std::min(probe.repeats, kMostDoublings);
  if (open && probe.first_answer == 0 && beat_ - probe.since >= again) {
    const std::uint32_t repeats = probe.repeats;
    start_probe(route, probe.answering);
    probe.repeats = repeats + 1;
  } else if (!open && (asked_any || beat_ - probe.since >= again)) {
    probe.on = false;
    probe.ended = beat_;
  }
}

}  // namespace railyard::transport
