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

void Engine::watch(Flow& flow) {
  if (flow.watched) return;
  flow.watched = true;
  flow.heard_at = flow.head_since = beat_;
  for (Link& link : flow.links) {
    link.health.delivered_since = beat_;
    if (!link.health.stood) link.health.since = beat_;
  }
  watched_.push_back(&flow);
}

bool Engine::at_rest(const Flow& flow) const {
  if (flow.failed.load(std::memory_order_relaxed)) return true;
  if (flow.outstanding.load(std::memory_order_relaxed) != 0 || !flow.unacknowledged.empty() || !flow.queue.empty())
    return false;
  if (flow.probe.on || flow.concerned_since != 0) return false;
  if (!flow.pongs.empty()) return false;
  if (flow.direct.load(std::memory_order_relaxed)) {
    // No operation would come along and ask: a link that ended is followed up here and now.
    const bool whole = std::ranges::all_of(flow.links, &Link::up);
    if (!whole || !flow.acquainted) return false;
  }
  return std::ranges::none_of(flow.links, [](const Link& link) {
    return link.health.unfenced || link.health.state == LinkState::trying || !link.idle();
  });
}

void Engine::look_after_links() {
  beat_ += std::min(now_ - looked_at_, kMostStep);
  looked_at_ = now_;
  for (std::size_t i = 0; i < watched_.size();) {
    Flow& flow = *watched_[i];
    look_after(flow);
    if (!at_rest(flow)) {
      ++i;
      continue;
    }
    flow.watched = false;
    watched_[i] = watched_.back();
    watched_.pop_back();
  }
}

/// A peer that has heard of us says goodbye when it leaves; of one that has not, only the end of its links would be
/// seen, and a rank that left in peace would pass for a lost one. No answer means nothing: the peer may be busy.
void Engine::make_acquaintance(Flow& flow) {
  if (flow.direct.load(std::memory_order_relaxed) && !flow.acquainted && !flow.probe.on) start_probe(flow, false);
}

void Engine::look_after(Flow& flow) {
  make_acquaintance(flow);
  look_at_head(flow);
  if (flow.probe.on) judge(flow);
  // The peer asks and no link takes the answer: their queues are full of what does not complete.
  if (!flow.pongs.empty() && beat_ - flow.pongs_since >= kMuteFloors * deadline_floor_) {
    flow.pongs_since = beat_;
    fail_links(flow, LossCause::stuck);
  }
  for (Link& link : flow.links) {
    if (flow.failed.load(std::memory_order_relaxed)) return;
    LinkHealth& health = link.health;
    if (health.unfenced) ask_for_fence(flow, link);
    switch (health.state) {
      case LinkState::up:
        link.health.stood ? look_at_deliveries(flow, link) : look_at_connection(flow, link);
        break;
      case LinkState::trying:
        tend_attempt(flow, link);
        break;
      case LinkState::down:
        if (!rail_states_[link.rail()].down && beat_ >= health.next_try) try_link(flow, link);
        break;
    }
  }
  look_at_silence(flow);
}

/// The oldest unacknowledged unit is what everything else waits for: its link is the one to doubt.
void Engine::look_at_head(Flow& flow) {
  const Unit* head = flow.unacknowledged.head();
  if (head == nullptr || head->sequence != flow.head_seen || head->lost || head->again) {
    flow.head_since = beat_;
    if (head != nullptr) flow.head_seen = head->sequence;
    return;
  }
  Link& link = flow.links[head->link];
  if (!link.up()) return;
  const std::int64_t age = beat_ - flow.head_since;
  if (age >= link.deadline(deadline_floor_) / 2) suspect(flow, link);
  if (age >= stuck_after(link) && link.health.answered_at > flow.head_since) {
    fail_link(flow, link, LossCause::stuck, "");
  }
}

/// A first connection that does not come about is a lost link: a ping shows whether it has.
void Engine::look_at_connection(Flow& flow, Link& link) {
  if (beat_ - link.health.since < attempt_time() || ask(flow, link)) return;
  fail_link(flow, link, LossCause::unconnected, "");
}

/// Reads and relaxed writes have no place in the sequence: bytes must be delivered now and then.
void Engine::look_at_deliveries(Flow& flow, Link& link) {
  LinkHealth& health = link.health;
  if (link.bytes_in_flight() == 0 || link.delivered() != health.delivered_seen) {
    health.delivered_seen = link.delivered();
    health.delivered_since = beat_;
    return;
  }
  const std::int64_t age = beat_ - health.delivered_since;
  if (age >= link.deadline(deadline_floor_) / 2) suspect(flow, link);
  if (age >= stuck_after(link) && health.answered_at > health.delivered_since) {
    fail_link(flow, link, LossCause::stuck, "");
  }
}

void Engine::look_at_silence(Flow& flow) {
  if (flow.failed.load(std::memory_order_relaxed)) return;
  if (flow.heard_at >= flow.concerned_since) flow.concerned_since = 0;
  const bool owes = flow.outstanding.load(std::memory_order_relaxed) != 0 || flow.concerned_since != 0;
  const std::int64_t silence = beat_ - flow.heard_at;
  if (!owes || silence < peer_timeout_ / 2) return;
  if (silence >= peer_timeout_) {
    return lose_peer(flow, fmt::format("silent for {:.1f} s", static_cast<double>(silence) * 1e-9));
  }
  if (flow.renewed_for == flow.heard_at) return;
  // Half of its time is over: connections that lost what they carried, or wait ever longer to send it again, are made
  // anew.
  flow.renewed_for = flow.heard_at;
  fail_links(flow, LossCause::mute);
}

/// How long an attempt to connect may take: many deadlines, and no less than any network needs.
std::int64_t Engine::attempt_time() const { return std::max(kAttemptFloors * deadline_floor_, kLeastAttempt); }

std::int64_t Engine::stuck_after(const Link& link) const {
  if (!link.knows_trip()) return kStuckUnknown;
  return std::max(kStuckDeadlines * link.deadline(deadline_floor_), kStuckFloors * deadline_floor_);
}

void Engine::suspect(Flow& flow, Link& link) {
  if (flow.probe.on || beat_ - flow.probe.ended < link.deadline(deadline_floor_)) return;
  if (!link.health.suspect) {
    link.health.suspect = true;
    ++counts_.links_suspected;
    log_info("rank {} is late on rail {} ({} ms): asking all links", flow.peer, rails_[link.rail()]->name(),
             link.deadline(deadline_floor_) / 1'000'000);
  }
  start_probe(flow, false);
}

void Engine::start_probe(Flow& flow, bool answering) {
  flow.probe.on = true;
  flow.probe.answering = answering;
  flow.probe.first_round = flow.rounds + 1;
  flow.probe.repeats = 0;
  flow.probe.since = beat_;
  flow.probe.first_answer = 0;
  watch(flow);
}

/// Sends a ping on the link. A link too full to take it counts as asked: what fills it is what is overdue.
bool Engine::ask(Flow& flow, Link& link) {
  const std::uint32_t round = ++flow.rounds;
  const std::uint8_t answering = flow.probe.on && flow.probe.answering ? 1 : 0;
  const bool sent = send_notice(flow, link, {wire::RecordKind::ping, answering, 0, round, place_of(flow, link).pack()});
  if (!link.up() && link.health.state != LinkState::trying) return false;  // that was how we learnt that it is gone
  if (!sent && !link.health.stood) return false;                           // still being connected
  link.health.asked = round;
  link.health.asked_at = now_;
  return true;
}

void Engine::judge(Flow& flow) {
  Probe& probe = flow.probe;
  bool open = false;
  bool asked_any = false;
  for (Link& link : flow.links) {
    LinkHealth& health = link.health;
    if (!link.up()) continue;
    if (health.asked < probe.first_round) ask(flow, link);
    if (!link.up() || health.asked < probe.first_round) continue;
    asked_any = true;
    if (health.answered >= probe.first_round) continue;
    const std::int64_t patience = link.deadline(deadline_floor_) / 2;
    const bool overdue = beat_ - probe.since >= patience;
    if (overdue && probe.first_answer != 0 && beat_ - probe.first_answer >= patience) {
      fail_link(flow, link, LossCause::silent, "");
    } else {
      open = true;
    }
  }
  if (flow.failed.load(std::memory_order_relaxed)) return;
  const std::int64_t again = flow.links.front().deadline(deadline_floor_) << std::min(probe.repeats, kMostDoublings);
  if (open && probe.first_answer == 0 && beat_ - probe.since >= again) {
    const std::uint32_t repeats = probe.repeats;
    start_probe(flow, probe.answering);
    probe.repeats = repeats + 1;
  } else if (!open && (asked_any || beat_ - probe.since >= again)) {
    probe.on = false;
    probe.ended = beat_;
  }
}

}  // namespace railyard::transport
