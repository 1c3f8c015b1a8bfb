#include "transport/watch_list.hpp"

namespace railyard::transport {

bool WatchList::begin(Route& route) {
  if (route.watched) return false;
  route.watched = route.watch_begins = true;
  route.heard_at = core_.health_clock;
  restart_ages(route);
  for (Link& link : route.links)
    if (!link.health.stood) link.health.since = core_.health_clock;
  watched_.push_back(&route);
  recent_ = &route;
  return true;
}

/// What is under way counts as sent now.
[[gnu::hot]] void WatchList::restart_ages(Route& route) const {
  for (Flow* flow : route.flows) flow->head_since = core_.health_clock;
  for (Link& link : route.links) link.deliveries.since = core_.health_clock;
}

void WatchList::forget(const Route& route) {
  std::erase(watched_, &route);
  if (recent_ == &route) recent_ = nullptr;
}

}  // namespace railyard::transport
