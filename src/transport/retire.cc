/// The end of flows and routes. What a rail still holds is waited for: a structure goes when nothing points to it.
#include <algorithm>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {

void Engine::log_ended(const Flow& flow) {
  log_debug("flow {} to {}: ended, {} operations completed", flow.id, flow.route->who,
            flow.completed.load(std::memory_order_relaxed));
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
