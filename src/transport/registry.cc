#include "transport/registry.hpp"

#include <algorithm>

#include "transport/flow.hpp"

namespace railyard::transport {

bool Route::may_be_joined() const {
  if (over || loss.on || closing || !shared()) return false;
  return std::ranges::any_of(
      flows, [](const Flow* flow) { return !flow->parting && !flow->failed.load(std::memory_order_relaxed); });
}

Route* Registry::add(std::unique_ptr<Route> route) {
  std::set<std::uint32_t>& taken = numbers_[route->who];
  while (taken.contains(route->number)) ++route->number;
  taken.insert(route->number);
  inbound_[route->name.in] = route.get();
  by_key_[route->key].push_back(route.get());
  routes_.push_back(std::move(route));
  return routes_.back().get();
}

void Registry::remove(Route& route) {
  inbound_.erase(route.name.in);
  const auto entry = by_key_.find(route.key);
  std::erase(entry->second, &route);
  if (entry->second.empty()) by_key_.erase(entry);
  const auto numbers = numbers_.find(route.who);
  numbers->second.erase(route.number);
  if (numbers->second.empty()) numbers_.erase(numbers);
  std::erase_if(routes_, [&route](const auto& each) { return each.get() == &route; });
}

Route* Registry::find(const RouteKey& key) const {
  const auto entry = by_key_.find(key);
  if (entry == by_key_.end()) return nullptr;
  Route* found = nullptr;
  for (Route* route : entry->second) {
    if (route->may_be_joined() && (found == nullptr || route->instance < found->instance)) found = route;
  }
  return found;
}

Route* Registry::known(const RouteKey& key, std::uint64_t instance) const {
  const auto entry = by_key_.find(key);
  if (entry == by_key_.end()) return nullptr;
  const auto found = std::ranges::find(entry->second, instance, &Route::instance);
  return found == entry->second.end() ? nullptr : *found;
}

Route* Registry::find(const RouteKey& key, std::uint64_t instance) const {
  Route* const route = known(key, instance);
  return route != nullptr && route->may_be_joined() ? route : nullptr;
}

std::uint32_t Registry::least_used(RouteKey key, std::uint32_t most) const {
  std::uint32_t best = 0;
  std::size_t fewest = SIZE_MAX;
  for (key.number = 0; key.number < most; ++key.number) {
    const Route* route = find(key);
    const std::size_t flows = route == nullptr ? 0 : route->flows.size();
    if (flows >= fewest) continue;
    fewest = flows;
    best = key.number;
  }
  return best;
}

Route* Registry::find_inbound(fabric::LinkName link) const {
  const auto found = inbound_.find(RouteName::of_route(link));
  return found == inbound_.end() ? nullptr : found->second;
}

}  // namespace railyard::transport
