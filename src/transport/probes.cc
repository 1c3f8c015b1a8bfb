#include "transport/probes.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"

namespace railyard::transport {
namespace {

constexpr std::uint32_t kMostDoublings = 4;  ///< of the time between two rounds that nobody answers
/// Looks of our own, each after a poll, between the peer's second answer and a verdict: time that goes by while this
/// thread waits for a processor is no silence of the peer's.
constexpr std::uint32_t kLooksToJudge = 3;

}  // namespace

void Probes::start(Route& route, bool answering) {
  route.probe.on = true;
  route.probe.answering = answering;
  route.probe.first_round = route.rounds + 1;
  route.probe.repeats = 0;
  route.probe.since = core_.health_clock;
  route.probe.first_answer = route.probe.confirmed = 0;
  route.probe.second_round = 0;
  route.probe.looks = 0;
  watched_.watch(route);
}

void Probes::suspect(Route& route, Link& link) {
  const std::int64_t deadline = link.deadline(core_.deadline_floor);
  if (route.probe.on || core_.health_clock - route.probe.ended < deadline) return;
  const LinkState before = link.health.state;
  if (link.health.on(LinkEvent::late) != LinkAction::probe) return;
  if (link.health.state != before) {
    link.health.state_at = core_.clock->now();
    ++core_.counts.links_suspected;
    ++core_.rails.state(link.rail()).statistics.links_suspected;
    core_.trace.event({EngineTrace::Kind::link_suspect, route.peer, link.rail()});
    log_info(core_.rails[link.rail()].in_log(), "{} is late ({} ms): asking all links", route.who,
             deadline / 1'000'000);
  }
  start(route, false);
}

void Probes::check_on(Route& route) {
  if (!core_.failover || is_silent(route)) return;
  watched_.watch(route);
  if (route.concerned_since == 0) {  // else it is being found out: its time runs already
    route.concerned_since = core_.health_clock;
    if (!owes(route)) route.heard_at = core_.health_clock - 1;  // nothing was to be heard until now
  }
  if (!route.probe.on) start(route, false);
}

/// A link too full to take it counts as asked: what fills it is what is overdue.
bool Probes::ask(Route& route, Link& link, bool thorough) {
  const std::uint32_t round = ++route.rounds;
  Flow* const flow = control_flow(route);
  if (flow == nullptr) return false;
  if (!thorough) (void)carries(link);  // what is taken from now on is news
  const bool in_reply = route.probe.on && route.probe.answering;
  const wire::Ping ping{round, ends_of(route, link), in_reply, thorough};
  const bool sent = reports_.send_notice(*flow, link, ping.header());
  if (sent) route.asked_at = core_.health_clock;
  if (!sent && !link.health.stood) return false;  // still being connected
  link.pings.asked = round;
  link.pings.asked_at = core_.now;
  return true;
}

void Probes::on_pong(Route& route, wire::LinkEnds ends, std::uint32_t round) {
  if (ends.link >= route.links.size() || round > route.rounds) {
    ++core_.counts.dropped_malformed;
    return;
  }
  handshakes_.finish(route);
  Link& link = route.links[ends.link];
  LinkPings& pings = link.pings;
  if (round <= pings.answered) return;  // the same answer over another link
  pings.answered = round;
  pings.answered_at = core_.health_clock;
  pings.vouched_since = 0;
  if (round == pings.asked) link.note_trip(core_.now - pings.asked_at);
  if (link.health.state == LinkState::trying && round > pings.epoch_began) {
    ++pings.in_a_row;
    link.health.since = core_.health_clock;  // patience starts anew with every answer
    if (round == pings.asked) pings.asked = 0;
  }
  if (!link.up()) return;
  link.health.on(LinkEvent::answered);
  Probe& probe = route.probe;
  if (!probe.on || round < probe.first_round) return;
  if (probe.first_answer == 0) probe.first_answer = core_.health_clock;
  if (probe.confirmed == 0 && probe.second_round != 0 && round >= probe.second_round)
    probe.confirmed = core_.health_clock;
}

bool Probes::carries(Link& link) const {
  const auto delivery = core_.rails[link.rail()].delivery(link.remote());
  if (!delivery) return false;
  LinkDeliveries& deliveries = link.deliveries;
  if (delivery->taken != std::exchange(deliveries.taken, delivery->taken)) deliveries.taken_at = core_.health_clock;
  return !delivery->waits || core_.health_clock - deliveries.taken_at < std::max<std::int64_t>(link.chunk_time(), 1);
}

/// That one link answers and another does not may be the peer's scheduler: its thread may have been stopped between the
/// two rails. So who has answered is asked a second time, thoroughly: before that answer the peer reads what all its
/// rails have, and answers what it found there. A link that is silent even then does not carry.
void Probes::ask_again(Route& route) {
  for (Link& link : route.links) {
    if (!link.up() || link.pings.answered < route.probe.first_round) continue;
    if (ask(route, link, true) && route.probe.second_round == 0) route.probe.second_round = link.pings.asked;
  }
}

std::uint64_t Probes::judge(Route& route) {
  Probe& probe = route.probe;
  const std::int64_t age = core_.health_clock - probe.since;
  std::uint64_t silent = 0;
  bool open = false;
  bool asked_any = false;
  if (probe.confirmed != 0) ++probe.looks;
  for (Link& link : route.links) {
    LinkPings& pings = link.pings;
    if (!link.up()) continue;
    if (pings.asked < probe.first_round) ask(route, link);
    if (pings.asked < probe.first_round) continue;
    asked_any = true;
    if (pings.answered >= probe.first_round || pings.vouched >= probe.first_round) continue;
    const std::int64_t patience = link.deadline(core_.deadline_floor) / 2;
    const bool overdue = age >= patience;
    if (!overdue || probe.looks < kLooksToJudge || core_.health_clock - probe.confirmed < patience / 2) {
      open = true;
    } else if (carries(link) &&
               (pings.vouched_since == 0 || core_.health_clock - pings.vouched_since < core_.peer_timeout / 2)) {
      pings.vouched = pings.asked;
      if (pings.vouched_since == 0) pings.vouched_since = core_.health_clock;
    } else {
      silent |= std::uint64_t{1} << route.index_of(link);
    }
  }
  if (open && probe.first_answer != 0 && probe.second_round == 0) ask_again(route);
  const std::int64_t again = route.links.front().deadline(core_.deadline_floor)
                             << std::min(probe.repeats, kMostDoublings);
  if (open && probe.confirmed == 0 && age >= again) {
    const std::uint32_t repeats = probe.repeats;
    start(route, probe.answering);
    probe.repeats = repeats + 1;
  } else if (!open && (asked_any || age >= again)) {
    probe.on = false;
    probe.ended = core_.health_clock;
  }
  return silent;
}

}  // namespace railyard::transport
