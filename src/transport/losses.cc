#include "transport/losses.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"

namespace railyard::transport {
namespace {

/// Every epoch of a link, past and to come.
constexpr std::uint32_t kEveryEpoch = UINT32_MAX;
/// Attempts in a row that a peer's rail must refuse on every link: one may have crossed a fence.
constexpr std::uint8_t kRefusalsToBelieve = 3;

}  // namespace

/// Over every link that leads anywhere the peer's machine has answered that nobody is there. What somebody refuses who
/// may be another machine, or a packet filter, is no such answer: if there are no others, the peer's time decides.
bool Losses::nobody_there(const Route& route) const {
  bool refused = false;
  for (const Link& link : route.links) {
    const bool blind = core_.rails.state(link.rail()).down || link.attempts.unverified;
    if (link.health.state != LinkState::down || (!blind && !link.attempts.refused)) return false;
    refused |= !blind;
  }
  return refused;
}

/// Over every link that leads anywhere the peer's rail refuses ours: it has shut this process out, for good.
bool Losses::given_up_by_peer(const Route& route) const {
  bool refused = false;
  for (const Link& link : route.links) {
    const bool blind = core_.rails.state(link.rail()).down;
    const bool unwanted = link.attempts.unwanted >= kRefusalsToBelieve;
    if (link.health.state != LinkState::down || (!blind && !unwanted)) return false;
    refused |= !blind;
  }
  return refused;
}

bool Losses::begin_if_gone(Route& route) {
  if (!core_.failover) return false;
  if (nobody_there(route)) {
    begin(route, "its process is gone");
  } else if (given_up_by_peer(route)) {
    begin(route, "it has given this process up and refuses its links");
  }
  return route.loss.on;
}

void Losses::begin(Route& route, const std::string& why, const Flow* cause) {
  // Whoever has said goodbye is not lost, even if the rest of what it sent never came.
  Loss loss;
  loss.left = route.leaving && cause == nullptr;
  loss.why = why;
  loss.cause = cause;
  begin(route, std::move(loss));
}

void Losses::part(Route& route) {
  Loss loss;
  loss.left = true;
  begin(route, std::move(loss));
}

void Losses::begin(Route& route, Loss loss) {
  if (route.over || route.loss.on) return;
  loss.on = true;
  const std::int64_t now = core_.clock->now();
  loss.since = core_.health_clock;
  loss.not_before = now;
  const fabric::Rail* inexact = nullptr;
  for (const InboundLink& inbound : route.inbound) {
    const auto& capabilities = core_.rails[inbound.rail].capabilities();
    if (capabilities.fencing != fabric::Fencing::timed) continue;
    loss.not_before = std::max(loss.not_before, now + capabilities.packet_lifetime);
    inexact = &core_.rails[inbound.rail];
  }
  if (inexact != nullptr && !loss.left)
    loss.why +=
        fmt::format(" (rail {} has no exact fence: a process that only sleeps may write later)", inexact->name());
  route.loss = std::move(loss);
  links_.drop_all(route);
  losing_.push_back(&route);
  core_.has_chores = true;
}

bool Losses::end() {
  std::vector<Route*> ended;
  std::erase_if(losing_, [&](Route* route) {
    if (!shut_out(*route)) return false;
    ended.push_back(route);
    return true;
  });
  for (Route* route : ended) tell(*route);
  if (!gossip_.empty()) spread_gossip();
  return !ended.empty();
}

/// Whether nothing of the peer's can land any more, and no rail of ours holds anything for it.
bool Losses::shut_out(Route& route) {
  bool done = core_.now >= route.loss.not_before;
  for (const InboundLink& inbound : route.inbound) {
    done &= core_.rails.fence(inbound.rail, {RouteName::of_link(route.name.in, inbound.link), kEveryEpoch});
  }
  const bool held = std::ranges::any_of(route.flows, [](const Flow* flow) { return flow->posted != 0; });
  if (!held) return done;
  if (core_.health_clock - route.loss.since >= kMostReturn) core_.note_stuck(route);
  return false;
}

void Losses::tell(Route& route) {
  const Loss loss = std::exchange(route.loss, {});
  route.over = true;
  core_.trace.event({loss.left ? EngineTrace::Kind::peer_left : EngineTrace::Kind::peer_lost, route.peer});
  if (loss.left) {
    log_info("{} has closed its world", route.who);
    for (Flow* flow : route.flows) {
      completions_.fail(*flow, Error(Status::peer_lost, fmt::format("{} has closed its world", route.who),
                                     {.peer = route.peer, .sequence = flow->sender.acknowledged()}));
    }
    return;
  }
  ++core_.counts.peers_lost;
  for (Flow* flow : route.flows) {
    if (flow->failed.load(std::memory_order_relaxed)) continue;
    const bool collateral = loss.cause != nullptr && loss.cause != flow;
    Error error(Status::peer_lost,
                fmt::format("{} is lost: {}{}; {} operations were under way to it, segments {} to {} unacknowledged",
                            route.who, loss.why, collateral ? " (another channel on the same links)" : "",
                            flow->outstanding.load(std::memory_order_relaxed), flow->sender.acknowledged(),
                            flow->sender.next_sequence()),
                {.peer = route.peer, .operation = "failover", .sequence = flow->sender.acknowledged()});
    // Whoever had said its last word waits for nothing: a peer that has gone since has left in good order.
    flow->parting ? log_info("{}", error.message()) : log_warn("{}", error.message());
    completions_.fail(*flow, std::move(error));
  }
  if (route.world == nullptr) return;
  last_.store(static_cast<int>(route.world->flow_of(route.peer)), std::memory_order_release);
  // The others may wait for it without having sent it anything. Each finds out for itself.
  gossip_.push_back({route.world, route.peer});
  core_.has_chores = true;
}

void Losses::spread_gossip() {
  for (const auto& [world, rank] : gossip_) {
    const wire::RecordHeader record = wire::Lost{static_cast<std::uint64_t>(rank)}.header();
    for (const auto& flow : peers_.flows().all()) {
      if (flow->route->world == world && !flow->failed.load(std::memory_order_relaxed))
        reports_.send_notice(*flow, record);
    }
  }
  gossip_.clear();
}

}  // namespace railyard::transport
