/// How the links are: who is late, who answers, who must be given up. Looked at about once a millisecond, and only
/// where something is under way.
///
/// A segment that is overdue says that its peer or its link is in trouble, not which. So every link is asked at once:
/// one that stays silent while another answers is dead. Where none answers, the peer is busy with something else, or
/// gone: only `RAILYARD_PEER_TIMEOUT_MS` of that ends the wait.
///
/// Threads that get little of their processors look at one link now and at another much later, at both ends. So a
/// link is called dead only on what a loaded machine cannot bring about: the peer has read all its other links twice
/// over, this side has looked several times since, and the rail does not know that the peer's machine takes what the
/// link brings (`Rail::delivery`).
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
/// Rails are asked after a silent peer's process so many times while its time runs out.
constexpr std::int64_t kLivenessParts = 16;
constexpr std::uint32_t kUnansweredToBelieve = 3;
/// Looks of our own, each after a poll, between the peer's second answer and a verdict: time that goes by while this
/// thread waits for a processor is no silence of the peer's.
constexpr std::uint32_t kLooksToJudge = 3;

}  // namespace

void Engine::watch(Route& route) {
  if (begin_watch(route)) waiting_.nudge_later();  // who sleeps would look after the links too late
}

/// False: it was watched already.
[[gnu::hot]] bool Engine::begin_watch(Route& route) {
  if (route.watched) return false;
  route.watched = route.watch_begins = true;
  route.heard_at = beat_;
  restart_ages(route);
  for (Link& link : route.links)
    if (!link.health.stood) link.health.since = beat_;
  watched_.push_back(&route);
  return true;
}

/// What is under way counts as sent now.
[[gnu::hot]] void Engine::restart_ages(Route& route) const {
  for (Flow* flow : route.flows) flow->head_since = beat_;
  for (Link& link : route.links) link.health.delivered_since = beat_;
}

bool Engine::at_rest(const Flow& flow) const {
  if (flow.failed.load(std::memory_order_relaxed)) return true;
  if (flow.outstanding.load(std::memory_order_relaxed) != 0 || flow.sender.has_unacknowledged() ||
      flow.sender.has_queued())
    return false;
  if (flow.receiver.has_refusals()) return false;
  return std::ranges::none_of(flow.shares, &Share::unfenced);
}

bool Engine::at_rest(const Route& route) const {
  if (control_flow(route) == nullptr || route.loss.on) return true;
  if (route.probe.on || route.concerned_since != 0 || !route.pongs.empty()) return false;
  if (!std::ranges::all_of(route.flows, [this](const Flow* flow) { return at_rest(*flow); })) return false;
  // The peer waits for that answer, and it may be our own links that keep it from going out.
  if (std::ranges::any_of(fence_requests_, [&](const FenceRequest& one) { return one.flow->route == &route; }))
    return false;
  if (used_directly(route)) {
    // No operation would come along and ask: a link that ended is followed up here and now.
    const bool whole = std::ranges::all_of(route.links, &Link::up);
    if (!whole || !route.handshake_done) return false;
  }
  return std::ranges::none_of(route.links,
                              [](const Link& link) { return link.health.state == LinkState::trying || !link.idle(); });
}

void Engine::look_after_links() {
  beat_ += std::min(now_ - looked_at_, kMostStep);
  looked_at_ = now_;
  for (std::size_t i = 0; i < watched_.size();) {
    Route& route = *watched_[i];
    // The clock stood still before: its first step is no age of what was sent after that.
    if (std::exchange(route.watch_begins, false)) restart_ages(route);
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
void Engine::begin_handshake(Route& route) {
  if (!route.handshake_done && !route.probe.on && used_directly(route)) start_probe(route, false);
}

void Engine::look_after(Route& route) {
  if (route.loss.on) return;
  begin_handshake(route);
  for (Flow* flow : route.flows) {
    if (!flow->failed.load(std::memory_order_relaxed)) look_at_head(*flow);
  }
  if (route.probe.on) judge(route);
  // The peer asks and no link takes the answer: their queues are full of what does not complete.
  if (!route.pongs.empty() && beat_ - route.pongs_since >= kMuteFloors * deadline_floor_) {
    const std::int64_t age = beat_ - route.pongs_since;
    bool given_up = false;
    for (Link& link : route.links) {
      if (!link.up() || !is_stuck(link, age, kMuteFloors * deadline_floor_)) continue;
      fail_link(route, link, LossCause::stuck, "");
      given_up = true;
    }
    if (given_up) route.pongs_since = beat_;
  }
  for (Link& link : route.links) {
    if (control_flow(route) == nullptr || route.loss.on) return;
    LinkHealth& health = link.health;
    ask_for_fences(route, link);
    switch (health.state) {
      case LinkState::connecting:
        look_at_connection(route, link);
        break;
      case LinkState::up:
      case LinkState::suspect:
        look_at_deliveries(route, link);
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

/// The oldest unacknowledged segment is what everything else waits for: its link is the one to doubt.
void Engine::look_at_head(Flow& flow) {
  const FlowSender& sender = flow.sender;
  const Segment* head = sender.oldest();
  if (head == nullptr && sender.has_queued() && !sender.has_unordered() && sender.next_sequence() == flow.head_seen) {
    // Everything sent was acknowledged, and nothing goes out: the rails are full of what never completes. Not where no
    // connection has come about yet.
    if (std::ranges::none_of(flow.route->links, [](const Link& link) { return link.health.stood; })) return;
    if (flow.route->stalled) return;  // it is the peer that does not take anything
    const std::int64_t age = beat_ - flow.head_since;
    if (age < 2 * attempt_time()) return;
    for (Link& link : flow.route->links) {
      if (!link.up() || !is_stuck(link, age, 2 * attempt_time())) continue;
      fail_link(*flow.route, link, LossCause::stuck, "");
      flow.head_since = beat_;
    }
    return;
  }
  if (head == nullptr || head->sequence != flow.head_seen || head->lost || head->again) {
    flow.head_since = beat_;
    flow.head_seen = head != nullptr ? head->sequence : sender.next_sequence();
    return;
  }
  Link& link = flow.route->links[head->link];
  if (!link.up()) return;
  const std::int64_t age = beat_ - flow.head_since;
  if (age >= link.deadline(deadline_floor_) / 2) suspect(*flow.route, link);
  if (link.health.answered_at > flow.head_since && is_stuck(link, age, stuck_after(link))) {
    fail_link(*flow.route, link, LossCause::stuck, "");
  }
}

/// A first connection that does not come about is a lost link: a ping shows whether it has. A peer that has said
/// nothing yet over any link is not ready: its machine keeps the connection for it.
void Engine::look_at_connection(Route& route, Link& link) {
  if (beat_ - link.health.since < attempt_time() || ask(route, link)) return;
  const bool heard = route.heard_at > link.health.since || route.handshake_done;
  if (!heard && beat_ - link.health.since < peer_timeout_ / 4) return;
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
  if (health.answered_at > health.delivered_since && is_stuck(link, age, stuck_after(link))) {
    fail_link(route, link, LossCause::stuck, "");
  }
}

/// What the rails say of the peer's process: one that knows is enough. Between two attempts there is no link to ask
/// about; then they are asked with the next.
fabric::Liveness Engine::liveness(Route& route) {
  auto found = fabric::Liveness::unknown;
  for (const Link& link : route.links) {
    if (link.health.state == LinkState::down) continue;
    route.liveness_asked = beat_;
    const auto answer = rails_[link.rail()]->liveness(link.remote());
    if (answer == fabric::Liveness::alive) return answer;
    if (answer == fabric::Liveness::gone) found = answer;
  }
  return found;
}

/// A peer that is there and silent is waited for: its operations have deadlines of their own.
void Engine::note_stall(Route& route, std::int64_t silence) {
  route.alive_at = beat_;
  route.concerned_since = 0;
  if (silence < peer_timeout_ / 2 || std::exchange(route.stalled, true)) return;
  ++counts_.peers_stalled;
  trace_.event(
      {.kind = EngineTrace::Kind::peer_stalled, .peer = route.peer, .more = static_cast<std::uint64_t>(silence)});
  log_warn("{} is stalled: no answer for {:.1f} s, but its process lives; what waits for it waits on", route.who,
           static_cast<double>(silence) * 1e-9);
}

/// The peer has something to answer.
bool Engine::owes(const Route& route) {
  return std::ranges::any_of(route.flows,
                             [](const Flow* flow) { return flow->outstanding.load(std::memory_order_relaxed) != 0; });
}

/// The peer's process takes our links and does not answer on them: a peer that has ended this route does so.
bool Engine::forgotten(const Route& route) {
  return route.unanswered >= kUnansweredToBelieve && route.unanswered_since > route.heard_at;
}

void Engine::look_at_silence(Route& route) {
  if (control_flow(route) == nullptr || route.loss.on) return;
  if (route.stalled && route.heard_at > route.alive_at) {
    route.stalled = false;
    log_warn("{} answers again", route.who);
  }
  if (route.heard_at >= route.concerned_since) route.concerned_since = 0;
  if (route.concerned_since == 0 && !owes(route)) {
    route.owed_since = beat_;
    return;
  }
  // Nothing was to be heard before something was owed.
  const std::int64_t heard = std::max(route.heard_at, route.owed_since);
  if (const std::int64_t unheard = beat_ - heard;
      unheard >= peer_timeout_ / kLivenessParts && beat_ - route.liveness_asked >= peer_timeout_ / kLivenessParts) {
    switch (liveness(route)) {
      case fabric::Liveness::gone:
        return lose_peer(route, "its process is gone");
      case fabric::Liveness::alive:
        if (unheard >= peer_timeout_ && forgotten(route))
          return lose_peer(route, "its process lives, and knows nothing of this one any more");
        // Silent is who was asked. Where no link has taken a question, it is our own that hang.
        if (unheard >= peer_timeout_ / 2 && route.asked_at <= heard) fail_links(route, LossCause::stuck);
        note_stall(route, unheard);
        break;
      case fabric::Liveness::unknown:
        break;
    }
  }
  const std::int64_t sign = std::max(heard, route.alive_at);
  const std::int64_t silence = beat_ - sign;
  if (silence < peer_timeout_ / 2) return;
  if (silence >= peer_timeout_) {
    const bool turned_away = std::ranges::any_of(route.links, [](const Link& link) { return link.health.unverified; });
    return lose_peer(route, fmt::format("silent for {:.1f} s, and nothing says that its process lives{}",
                                        static_cast<double>(silence) * 1e-9,
                                        turned_away ? " (connections to it are refused: by a packet filter, or by "
                                                      "another machine at its address, if it lives)"
                                                    : ""));
  }
  if (route.renewed_for == sign) return;
  // Half of its time is over: connections that lost what they carried, or wait ever longer to send it again, are made
  // anew.
  route.renewed_for = sign;
  fail_links(route, LossCause::mute);
}

/// How long an attempt to connect may take: many deadlines, and no less than any network needs.
std::int64_t Engine::attempt_time() const { return std::max(kAttemptFloors * deadline_floor_, kLeastAttempt); }

std::int64_t Engine::stuck_after(const Link& link) const {
  if (!link.knows_trip()) return kStuckUnknown;
  // Longer with every epoch: what is slow, not stuck, would be given up again before it delivers anything.
  const std::int64_t grown = std::min(link.health.back_off, peer_timeout_ / 4);
  return std::max({kStuckDeadlines * link.deadline(deadline_floor_), kStuckFloors * deadline_floor_, grown});
}

/// Whether the rail knows that the link carries: the peer's machine has taken all that was sent, or more of it than at
/// the last look, or did so less than a chunk's time ago.
bool Engine::carries(Link& link) {
  const auto delivery = rails_[link.rail()]->delivery(link.remote());
  if (!delivery) return false;
  if (delivery->taken != std::exchange(link.health.taken_seen, delivery->taken)) link.health.taken_at = beat_;
  return !delivery->waits || beat_ - link.health.taken_at < std::max<std::int64_t>(link.chunk_time(), 1);
}

/// Nothing has come of what the link was given for `age`. Where the rail knows that it carries, it is the peer that has
/// not come to it: that is given longer, but not for ever.
bool Engine::is_stuck(Link& link, std::int64_t age, std::int64_t limit) {
  return age >= limit && (age >= peer_timeout_ / 2 || !carries(link));
}

void Engine::suspect(Route& route, Link& link) {
  if (route.probe.on || beat_ - route.probe.ended < link.deadline(deadline_floor_)) return;
  const LinkState before = link.health.state;
  if (link.health.on(LinkEvent::late) != LinkAction::probe) return;
  if (link.health.state != before) {
    ++counts_.links_suspected;
    trace_.event({EngineTrace::Kind::link_suspect, route.peer, link.rail()});
    log_info(rails_[link.rail()]->in_log(), "{} is late ({} ms): asking all links", route.who,
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
  route.probe.first_answer = route.probe.confirmed = 0;
  route.probe.second_round = 0;
  route.probe.looks = 0;
  watch(route);
}

/// Sends a ping on the link. A link too full to take it counts as asked: what fills it is what is overdue.
bool Engine::ask(Route& route, Link& link, bool thorough) {
  const std::uint32_t round = ++route.rounds;
  std::uint8_t detail = route.probe.on && route.probe.answering ? wire::kPingInReply : std::uint8_t{0};
  if (thorough) detail |= wire::kPingThorough;
  Flow* const flow = control_flow(route);
  if (flow == nullptr) return false;
  if (!thorough) (void)carries(link);  // what is taken from now on is news
  const bool sent = send_notice(*flow, link, {wire::RecordKind::ping, detail, 0, round, ends_of(route, link).pack()});
  if (sent) route.asked_at = beat_;
  if (!link.up() && link.health.state != LinkState::trying) return false;  // that was how we learnt that it is gone
  if (!sent && !link.health.stood) return false;                           // still being connected
  link.health.asked = round;
  link.health.asked_at = now_;
  return true;
}

/// That one link answers and another does not may be the peer's scheduler: its thread may have been stopped between the
/// two rails. So who has answered is asked a second time, thoroughly: before that answer the peer reads what all its
/// rails have, and answers what it found there. A link that is silent even then does not carry.
void Engine::ask_again(Route& route) {
  for (Link& link : route.links) {
    if (!link.up() || link.health.answered < route.probe.first_round) continue;
    if (ask(route, link, true) && route.probe.second_round == 0) route.probe.second_round = link.health.asked;
  }
}

void Engine::judge(Route& route) {
  Probe& probe = route.probe;
  bool open = false;
  bool asked_any = false;
  if (probe.confirmed != 0) ++probe.looks;
  for (Link& link : route.links) {
    LinkHealth& health = link.health;
    if (!link.up()) continue;
    if (health.asked < probe.first_round) ask(route, link);
    if (!link.up() || health.asked < probe.first_round) continue;
    asked_any = true;
    if (health.answered >= probe.first_round || health.vouched >= probe.first_round) continue;
    const std::int64_t patience = link.deadline(deadline_floor_) / 2;
    const bool overdue = beat_ - probe.since >= patience;
    if (!overdue || probe.looks < kLooksToJudge || beat_ - probe.confirmed < patience / 2) {
      open = true;
    } else if (carries(link) && (health.vouched_since == 0 || beat_ - health.vouched_since < peer_timeout_ / 2)) {
      health.vouched = health.asked;
      if (health.vouched_since == 0) health.vouched_since = beat_;
    } else {
      fail_link(route, link, LossCause::silent, "");
    }
  }
  if (control_flow(route) == nullptr || route.loss.on) return;
  if (open && probe.first_answer != 0 && probe.second_round == 0) ask_again(route);
  const std::int64_t again = route.links.front().deadline(deadline_floor_) << std::min(probe.repeats, kMostDoublings);
  if (open && probe.confirmed == 0 && beat_ - probe.since >= again) {
    const std::uint32_t repeats = probe.repeats;
    start_probe(route, probe.answering);
    probe.repeats = repeats + 1;
  } else if (!open && (asked_any || beat_ - probe.since >= again)) {
    probe.on = false;
    probe.ended = beat_;
  }
}

}  // namespace railyard::transport
