/// The end of a peer: it is gone, it has left, or it is given up. Whoever is told so may use its memory for something
/// else at once. So the peer is shut out first: our own links are dropped, every link that it has to us is fenced for
/// good, and our rails give back what they held; flows fail only then. docs/failover.md, "A peer".
#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

/// Every epoch of a link, past and to come.
constexpr std::uint32_t kEveryEpoch = UINT32_MAX;
/// Attempts in a row that a peer's rail must refuse on every link: one may have crossed a fence.
constexpr std::uint8_t kRefusalsToBelieve = 3;
/// How long a rail may take to give back what a dropped link held. One that never does cannot hold up a loss for ever.
constexpr std::int64_t kMostReturn = 2'000'000'000;

}  // namespace

/// Over every link that leads anywhere the peer's machine has answered that nobody is there. What somebody refuses who
/// may be another machine, or a packet filter, is no such answer: if there are no others, the peer's time decides.
bool Engine::nobody_there(const Route& route) const {
  bool refused = false;
  for (const Link& link : route.links) {
    const bool blind = rail_states_[link.rail()].down || link.health.unverified;
    if (link.health.state != LinkState::down || (!blind && !link.health.refused)) return false;
    refused |= !blind;
  }
  return refused;
}

/// Over every link that leads anywhere the peer's rail refuses ours: it has shut this process out, for good.
bool Engine::given_up_by_peer(const Route& route) const {
  bool refused = false;
  for (const Link& link : route.links) {
    const bool blind = rail_states_[link.rail()].down;
    const bool unwanted = link.health.unwanted >= kRefusalsToBelieve;
    if (link.health.state != LinkState::down || (!blind && !unwanted)) return false;
    refused |= !blind;
  }
  return refused;
}

bool Engine::lose_if_gone(Route& route) {
  if (!failover_) return false;
  if (nobody_there(route)) {
    lose_peer(route, "its process is gone");
  } else if (given_up_by_peer(route)) {
    lose_peer(route, "it has given this process up and refuses its links");
  }
  return route.loss.on;
}

void Engine::lose_peer(Route& route, const std::string& why, const Flow* cause) {
  // Whoever has said goodbye is not lost, even if the rest of what it sent never came.
  Loss loss;
  loss.left = route.leaving && cause == nullptr;
  loss.why = why;
  loss.cause = cause;
  begin_loss(route, std::move(loss));
}

void Engine::part_from(Route& route) {
  Loss loss;
  loss.left = true;
  begin_loss(route, std::move(loss));
}

void Engine::begin_loss(Route& route, Loss loss) {
  if (route.over || route.loss.on) return;
  loss.on = true;
  loss.since = loss.not_before = clock_->now();
  const fabric::Rail* inexact = nullptr;
  for (const InboundLink& inbound : route.inbound) {
    const auto& capabilities = rails_[inbound.rail]->capabilities();
    if (capabilities.fencing != fabric::Fencing::timed) continue;
    loss.not_before = std::max(loss.not_before, loss.since + capabilities.packet_lifetime);
    inexact = rails_[inbound.rail].get();
  }
  if (inexact != nullptr && !loss.left)
    loss.why +=
        fmt::format(" (rail {} has no exact fence: a process that only sleeps may write later)", inexact->name());
  route.loss = std::move(loss);
  for (Link& link : route.links) drop_link(link);
  losing_.push_back(&route);
  has_chores_ = true;
}

/// After the rails were polled and what came of it was handled: a fence that holds has let everything through that will
/// ever come.
bool Engine::end_losses() {
  std::vector<Route*> ended;
  std::erase_if(losing_, [&](Route* route) {
    if (!shut_out_inbound(*route)) return false;
    ended.push_back(route);
    return true;
  });
  for (Route* route : ended) tell_loss(*route);
  return !ended.empty();
}

/// Whether nothing of the peer's can land any more, and no rail of ours holds anything for it.
bool Engine::shut_out_inbound(Route& route) {
  bool done = now_ >= route.loss.not_before;
  for (const InboundLink& inbound : route.inbound) {
    done &= rails_[inbound.rail]->fence({RouteName::of_link(route.name.in, inbound.link), kEveryEpoch});
  }
  const bool held = std::ranges::any_of(route.flows, [](const Flow* flow) { return flow->posted != 0; });
  return done && (!held || now_ - route.loss.since >= kMostReturn);
}

void Engine::tell_loss(Route& route) {
  const Loss loss = std::exchange(route.loss, {});
  route.over = true;
  trace_.event({loss.left ? EngineTrace::Kind::peer_left : EngineTrace::Kind::peer_lost, route.peer});
  if (loss.left) {
    log_info("{} has closed its world", route.who);
    for (Flow* flow : route.flows) {
      fail_flow(*flow, Error(Status::peer_lost, fmt::format("{} has closed its world", route.who),
                             {.peer = route.peer, .sequence = flow->sender.acknowledged()}));
    }
    return;
  }
  ++counts_.peers_lost;
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
    fail_flow(*flow, std::move(error));
  }
  last_lost_.store(route.peer, std::memory_order_release);
  // The others may wait for it without having sent it anything. Each finds out for itself.
  if (size_ > 0) gossip_.push_back(route.peer);
  has_chores_ = true;
}

}  // namespace railyard::transport
