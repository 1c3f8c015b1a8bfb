/// The end of flows and routes. What a rail still holds is waited for: a structure goes when nothing points to it.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

/// Passes of a caller that waits until a peer is shut out.
constexpr int kMostTurns = 10000;

}  // namespace

void Engine::close_flow(Flow& flow) {
  if (flow.closing) return;
  flow.inbox = nullptr;
  flow.closing = true;
  ++leaving_;
  has_chores_ = true;
  // The peer may wait for this, and nobody could tell it later.
  if (flow.receiver.owes_report() && !flow.failed.load(std::memory_order_relaxed)) post_acknowledgement(flow);
  flows_[flow.id].store(nullptr, std::memory_order_release);
  fail_flow(flow, Error(Status::invalid, "closed by its own user"));
  // A transport that failed one flow goes on with the others: its route is theirs.
  scheduler_.remove(flow);
  std::erase(reporting_, &flow);
  std::erase(ready_, &flow);
  std::erase(refusing_, &flow);
  flow.in_reporting = flow.in_ready = flow.in_refusing = false;
  std::erase_if(fence_requests_, [&flow](const FenceRequest& request) { return request.flow == &flow; });
  if (flow.heard) --heard_flows_;
  Route& route = *flow.route;
  if (control_flow(route) == nullptr && !route.closing) {
    route.closing = true;
    ++leaving_;
    has_chores_ = true;
    for (Link& link : route.links) drop_link(link);
  }
}

bool Engine::retire_flow(Flow& flow) {
  if (!flow.closing || flow.posted != 0) return false;
  std::erase(flow.route->flows, &flow);
  release_flow(flow.id);
  --leaving_;
  return true;
}

bool Engine::retire_route(Route& route) {
  if (!route.closing || !route.flows.empty() || route.loss.on) return false;
  if (std::ranges::any_of(route.links, [](const Link& link) { return link.reports_in_flight() != 0; })) return false;
  std::erase(watched_, &route);
  std::erase(noticing_, &route);
  for (const Link& link : route.links) {
    if (!route.over) rails_[link.rail()]->forget(RouteName::of_link(route.name.in, route.index_of(link)));
  }
  --leaving_;
  return true;
}

void Engine::retire() {
  std::erase_if(flow_storage_, [this](const auto& flow) { return retire_flow(*flow); });
  std::vector<Route*> over;
  for (const auto& route : registry_.routes()) {
    if (retire_route(*route)) over.push_back(route.get());
  }
  for (Route* route : over) registry_.remove(*route);
}

void Engine::shut_out(Flow& cause, const std::string& why) {
  const Route& route = *cause.route;
  begin_shut_out(cause, why);
  for (int turn = 0; turn < kMostTurns && route.loss.on; ++turn) {
    if (!progress()) clock_->idle();
  }
}

}  // namespace railyard::transport
