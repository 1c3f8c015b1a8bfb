/// WatchList: the routes that somebody must look after: those with something under way, or a link in trouble. A route
/// is put on it by whoever sends on it, and taken off when Health finds it at rest.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "transport/core.hpp"
#include "transport/flow.hpp"

namespace railyard::transport {

class WatchList {
 public:
  explicit WatchList(Core& core) : core_(core) {}

  bool empty() const { return watched_.empty(); }
  /// False: it was watched already. Else whoever sleeps would look after its links too late, and is to be woken.
  [[gnu::hot]] bool begin(Route& route);
  /// The same, and wakes them.
  void watch(Route& route) {
    if (begin(route)) core_.waiting.nudge_later();
  }
  /// `look(Route&)` says whether a route stays on the list.
  template <typename Look>
  void look(Look&& look) {
    for (std::size_t i = 0; i < watched_.size();) {
      Route& route = *watched_[i];
      // The clock stood still before: its first step is no age of what was sent after that.
      if (std::exchange(route.watch_begins, false)) restart_ages(route);
      if (look(route)) {
        ++i;
        continue;
      }
      route.watched = false;
      watched_[i] = watched_.back();
      watched_.pop_back();
    }
  }
  /// The route goes.
  void forget(const Route& route);
  /// The last that came onto the list; null: it is gone.
  const Route* recent() const { return recent_; }

 private:
  void restart_ages(Route& route) const;

  Core& core_;
  std::vector<Route*> watched_;
  const Route* recent_ = nullptr;
};

}  // namespace railyard::transport
