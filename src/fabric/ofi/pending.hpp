/// Events that were found while something else was done: `poll` hands them out before it looks for more.
#pragma once

#include <cstdint>
#include <deque>
#include <span>

#include "fabric/rail.hpp"

namespace railyard::fabric::ofi {

class PendingEvents {
 public:
  bool empty() const { return items_.empty(); }
  void push(const Event& event) { items_.push_back({event, next_number_++}); }

  std::size_t take(std::span<Event> room) {
    std::size_t count = 0;
    for (; count < room.size() && !items_.empty(); ++count) {
      room[count] = items_.front().event;
      items_.pop_front();
    }
    return count;
  }

  /// A point in the order of events: all that is pending now comes before it.
  std::uint64_t mark() const { return next_number_; }
  /// Whether everything before the point has been handed out.
  bool past(std::uint64_t mark) const { return items_.empty() || items_.front().number >= mark; }

  /// A link that its owner has ended is not reported as lost any more.
  void forget_lost(RemoteId remote) {
    std::erase_if(
        items_, [&](const Item& item) { return item.event.kind == Event::Kind::lost && item.event.remote == remote; });
  }
  void clear() { items_.clear(); }

 private:
  struct Item {
    Event event;
    std::uint64_t number;
  };
  std::deque<Item> items_;
  std::uint64_t next_number_ = 0;
};

}  // namespace railyard::fabric::ofi
