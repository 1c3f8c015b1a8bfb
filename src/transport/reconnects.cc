#include "transport/reconnects.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"

namespace railyard::transport {
namespace {

constexpr std::int64_t kFirstBackOff = 100'000'000;
constexpr std::int64_t kMostBackOff = 10'000'000'000;
constexpr std::int64_t kMostPause = 1'000'000'000;  ///< between two attempts that fail
constexpr std::int64_t kSteady = 60'000'000'000;    ///< of life without a fault, that halves the back-off
constexpr std::uint8_t kAnswersToRejoin = 3;
constexpr std::uint32_t kAttemptsToWarn = 3;
constexpr std::int64_t kAttemptFloors = 25;
constexpr std::int64_t kLeastAttempt = 200'000'000;

std::int64_t next_back_off(std::int64_t before, std::int64_t lived) {
  if (before == 0) return kFirstBackOff;
  const std::int64_t halvings = std::min<std::int64_t>(lived / kSteady, 20);
  return halvings > 0 ? std::max(before >> halvings, kFirstBackOff) : std::min(2 * before, kMostBackOff);
}

}  // namespace

void Reconnects::back_off(const Route& route, Link& link) const {
  LinkAttempts& attempts = link.attempts;
  attempts.back_off = next_back_off(attempts.back_off, core_.health_clock - link.health.since);
  // With nothing left, the next attempt cannot wait.
  const bool any_left = std::ranges::any_of(route.links, &Link::up);
  attempts.next_try = core_.health_clock + (any_left ? attempts.back_off : 0);
}

void Reconnects::try_link(Route& route, Link& link) {
  if (core_.rails.state(link.rail()).down || core_.health_clock < link.attempts.next_try) return;
  LinkHealth& health = link.health;
  if (health.on(LinkEvent::due) != LinkAction::connect) return;
  const auto peer = core_.find(route);
  ++health.epoch;
  health.since = core_.health_clock;
  LinkPings& pings = link.pings;
  pings.in_a_row = 0;
  pings.asked = 0;
  pings.vouched_since = 0;
  pings.epoch_began = route.rounds;
  link.attempts.refused = link.attempts.unverified = false;
  const auto connected = peer ? links_.connect(route, link, *peer) : Result<void>(peer.error().copy());
  if (connected) return;
  health.on(LinkEvent::unreachable);
  log_info("{}: {}", route.who, connected.error().message());
  link.attempts.next_try = core_.health_clock + kMostPause;
}

void Reconnects::tend(Route& route, Link& link) {
  LinkHealth& health = link.health;
  const LinkPings& pings = link.pings;
  if (pings.in_a_row >= kAnswersToRejoin) {
    if (health.on(LinkEvent::proven) == LinkAction::rejoin) announce_return(route, link);
    return;
  }
  const bool overdue = core_.now - pings.asked_at >= link.deadline(core_.deadline_floor);
  if (pings.asked == 0 || overdue) probes_.ask(route, link);
  if (core_.health_clock - health.since >= attempt_time() && health.on(LinkEvent::lost) == LinkAction::retry)
    failed(route, link);
}

void Reconnects::failed(Route& route, Link& link) {
  LinkAttempts& attempts = link.attempts;
  if (link.health.stood && link.pings.in_a_row == 0) {
    if (route.heard_at > route.unanswered_since) route.unanswered = 0;
    if (route.unanswered++ == 0) route.unanswered_since = core_.health_clock;
  }
  links_.disconnect(link);
  log_debug(core_.rails[link.rail()].in_log(), "no success with {}{}", route.who,
            attempts.refused ? ", nobody is there" : "");
  link.health.since = core_.health_clock;
  // An attempt is cheap: what may grow beyond a second is only the time that a link which came and went must wait. And
  // with nothing left, there is nothing to spare by waiting longer.
  const bool alone = std::ranges::none_of(route.links, &Link::up);
  const std::int64_t pause = std::min(kFirstBackOff << std::min<std::uint32_t>(attempts.failures++, 10), kMostPause);
  attempts.next_try = core_.health_clock + (alone ? kFirstBackOff : pause);
  if (losses_.begin_if_gone(route)) return;
  // A link that never stood was not missed at first: the peer may not have been ready.
  if (attempts.failures == kAttemptsToWarn && !attempts.told) {
    attempts.told = true;
    log_warn(core_.rails[link.rail()].in_log(), "still no connection to {}: trying on", route.who);
  }
}

std::int64_t Reconnects::attempt_time() const { return std::max(kAttemptFloors * core_.deadline_floor, kLeastAttempt); }

void Reconnects::announce_return(const Route& route, Link& link) const {
  LinkHealth& health = link.health;
  health.state_at = core_.clock->now();
  const std::int64_t away = health.state_at - health.lost_at;
  link.attempts.failures = 0;
  link.attempts.unwanted = 0;
  health.since = link.deliveries.since = core_.health_clock;
  ++core_.counts.links_rejoined;
  core_.trace.event({.kind = EngineTrace::Kind::link_up,
                     .peer = route.peer,
                     .rail = link.rail(),
                     .more = static_cast<std::uint64_t>(away)});
  const std::string news = fmt::format("link to {} is back after {:.3f} s, in epoch {}", route.who,
                                       static_cast<double>(away) * 1e-9, health.epoch + 1);
  const LogRail rail = core_.rails[link.rail()].in_log();
  std::exchange(link.attempts.told, false) ? log_warn(rail, "{}", news) : log_info(rail, "{}", news);
}

}  // namespace railyard::transport
