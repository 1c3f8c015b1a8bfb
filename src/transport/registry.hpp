/// Registry: the routes of an engine: which flows may share one, which one has the fewest, what the peer calls it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "transport/route.hpp"

namespace railyard::transport {

/// Owns every route. A route has no owner among the flows that share it: it goes with the last of them.
class Registry {
 public:
  /// No other route may have this one's name.
  Route* add(std::unique_ptr<Route> route);
  void remove(Route& route);
  std::span<const std::unique_ptr<Route>> routes() const { return routes_; }
  std::size_t size() const { return routes_.size(); }

  /// The living route of that key, the lowest instance where there are two; null: none.
  Route* find(const RouteKey& key) const;
  /// The route of exactly that instance, in whatever state.
  Route* known(const RouteKey& key, std::uint64_t instance) const;
  /// The same, if it is alive.
  Route* find(const RouteKey& key, std::uint64_t instance) const;
  /// Which of `most` numbers has the fewest flows; of equals the lowest.
  std::uint32_t least_used(RouteKey key, std::uint32_t most) const;
  /// The route that a peer's link to us belongs to.
  Route* find_inbound(fabric::LinkName link) const;

 private:
  std::vector<std::unique_ptr<Route>> routes_;
  std::map<RouteKey, std::vector<Route*>> by_key_;
  std::map<fabric::LinkName, Route*> inbound_;              ///< by `RouteName::in`
  std::map<std::string, std::set<std::uint32_t>> numbers_;  ///< of the routes to each `Route::who`
};

}  // namespace railyard::transport
