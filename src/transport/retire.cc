/// The end of worlds, flows and routes. What a rail still holds is waited for: a structure goes when nothing points to
/// it.
#include <algorithm>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

/// For how long, in nanoseconds, a rank that spoke too late is told so.
constexpr std::int64_t kMostLateGoodbye = 1'000'000'000;

}  // namespace

void Engine::log_ended(const Flow& flow) {
  log_debug("flow {} to {}: ended, {} operations completed", flow.id, flow.route->who,
            flow.completed.load(std::memory_order_relaxed));
}

const Ranks* Engine::join(Ranks ranks) {
  // Of a world that had these ids before.
  std::erase_if(peers_.late(), [&](const Peers::Late& late) {
    if (!ranks.owns(late.flow->id)) return false;
    close_flow(*late.flow);
    return true;
  });
  const Ranks* const joined = peers_.join(std::move(ranks));
  expect_flows();
  return joined;
}

void Engine::leave(const Ranks& ranks) {
  notices_.say_goodbye(
      [this] {
        const bool moved = progress();
        core_.progress_lock.give();  // other worlds and channels go on meanwhile
        if (!moved) core_.clock->idle();
        core_.progress_lock.take();
        return true;
      },
      &ranks);
  for (std::uint32_t id = ranks.first_flow; ranks.owns(id); ++id) {
    if (Flow* const flow = peers_.existing(id)) close_flow(*flow);
  }
  core_.rails.ring();
  losses_.forget(ranks);
  peers_.forget(ranks);
  retire();
  expect_flows();
}

/// Says goodbye to ranks that spoke for the first time when this process had left their world.
void Engine::part_with_late() {
  std::erase_if(peers_.late(), [this](Peers::Late& late) {
    Flow& flow = *late.flow;
    Route& route = *flow.route;
    const bool over = route.leave_heard || route.over || route.loss.on || flow.failed.load(std::memory_order_relaxed);
    if (over || core_.now - late.since > kMostLateGoodbye) {
      close_flow(flow);
      return true;
    }
    if (core_.now - late.told < core_.deadline_floor) return false;
    for (Link& link : route.links) {
      if (link.up() && reports_.send_notice(flow, link, wire::Leave{}.header())) late.told = core_.now;
    }
    return false;
  });
}

void Engine::expect_flows() {
  std::size_t flows = 0;
  for (const auto& world : peers_.worlds()) flows += static_cast<std::size_t>(world->size);
  core_.expect_flows(flows);
}

void Engine::close_flow(Flow& flow) {
  if (flow.closing) return;
  log_ended(flow);
  flow.inbox = nullptr;
  flow.closing = true;
  ++leaving_;
  core_.has_chores = true;
  // The peer may wait for this, and nobody could tell it later.
  if (flow.receiver.owes_report() && !flow.failed.load(std::memory_order_relaxed)) reports_.acknowledge(flow);
  peers_.flows().hide(flow);
  completions_.fail(flow, Error(Status::invalid, "closed by its own user"));
  // A transport that failed one flow goes on with the others: its route is theirs.
  transmitter_.forget(flow);
  reports_.forget(flow);
  inbound_.forget(flow);
  refusals_.forget(flow);
  fence_requests_.forget(flow);
  Route& route = *flow.route;
  if (control_flow(route) == nullptr && !route.closing) {
    route.closing = true;
    ++leaving_;
    links_.drop_all(route);
  }
}

void Engine::retire() {
  peers_.flows().remove_if([this](const Flow& flow) {
    if (!flow.closing || flow.posted != 0) return false;
    std::erase(flow.route->flows, &flow);
    --leaving_;
    return true;
  });
  std::vector<Route*> over;
  for (const auto& route : peers_.registry().routes()) {
    if (retire(*route)) over.push_back(route.get());
  }
  for (Route* route : over) peers_.registry().remove(*route);
  peers_.release_ids();
}

bool Engine::retire(Route& route) {
  if (!route.closing || !route.flows.empty() || route.loss.on) return false;
  const auto reports = [this](const Link& link) {
    return link.reports_in_flight() != 0 && !core_.rails.state(link.rail()).stopped;
  };
  if (std::ranges::any_of(route.links, reports)) return false;
  watched_.forget(route);
  poster_.forget(route);
  notices_.forget(route);
  for (const Link& link : route.links) {
    if (!route.over) core_.rails[link.rail()].forget(RouteName::of_link(route.name.in, route.index_of(link)));
  }
  --leaving_;
  return true;
}

}  // namespace railyard::transport
