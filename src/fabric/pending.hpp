/// Events that were found while something else was done: `poll` hands them out before it looks for more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "fabric/rail.hpp"

namespace railyard::fabric {

/// Why a link is lost.
struct Loss {
  int error = 0;            ///< the driver's code
  bool refused = false;     ///< proof that the peer's process is gone
  bool unverified = false;  ///< somebody refuses who may not be the peer's machine
  bool unwanted = false;    ///< the peer's rail does not take this epoch
  Blame blame = Blame::link;
};

/// A ring that grows and stays as long as it once had to be: nothing is allocated in the long run.
class PendingEvents {
 public:
  bool empty() const { return taken_ == pushed_; }
  std::size_t size() const { return pushed_ - taken_; }

  void push(const Event& event) {
    if (size() == items_.size()) grow();
    items_[pushed_++ & (items_.size() - 1)] = {event, false};
  }

  void push_lost(RemoteId remote, const Loss& loss) {
    Event event;
    event.kind = Event::Kind::lost;
    event.remote = remote;
    event.error = loss.error;
    event.refused = loss.refused;
    event.unverified = loss.unverified;
    event.unwanted = loss.unwanted;
    event.blame = loss.blame;
    push(event);
  }
  void push_failed(PostContext* context, int error, Blame blame = Blame::link) {
    Event event;
    event.kind = Event::Kind::failed;
    event.context = context;
    event.error = error;
    event.blame = blame;
    push(event);
  }
  /// Whether the rail's interface can carry anything.
  void push_state(bool usable) {
    Event event;
    event.kind = usable ? Event::Kind::rail_up : Event::Kind::rail_down;
    push(event);
  }
  void push_left(const LinkTag& link) {
    Event event;
    event.kind = Event::Kind::left;
    event.link = link;
    push(event);
  }

  std::size_t take(std::span<Event> room) { return take(room, pushed_); }
  /// Those before the point alone.
  std::size_t take(std::span<Event> room, std::uint64_t before) {
    std::size_t count = 0;
    while (count < room.size() && taken_ < before) {
      const Item& item = items_[taken_++ & (items_.size() - 1)];
      if (!item.forgotten) room[count++] = item.event;
    }
    return count;
  }

  /// A point in the order of events: all that is pending now comes before it.
  std::uint64_t mark() const { return pushed_; }
  /// Whether everything before the point has been handed out.
  bool past(std::uint64_t mark) const { return taken_ >= mark; }

  /// A link that its owner has ended is not reported as lost any more.
  void forget_lost(RemoteId remote) {
    for (std::uint64_t number = taken_; number != pushed_; ++number) {
      Item& item = items_[number & (items_.size() - 1)];
      if (item.event.kind == Event::Kind::lost && item.event.remote == remote) item.forgotten = true;
    }
  }
  /// Each from the point on, to be changed.
  template <typename Change>
  void change_from(std::uint64_t mark, Change&& change) {
    for (std::uint64_t number = std::max(mark, taken_); number < pushed_; ++number)
      change(items_[number & (items_.size() - 1)].event);
  }
  void clear() { taken_ = pushed_; }

 private:
  struct Item {
    Event event;
    bool forgotten = false;
  };
  static constexpr std::size_t kFirstItems = 64;

  void grow() {
    std::vector<Item> longer(items_.empty() ? kFirstItems : 2 * items_.size());
    for (std::uint64_t number = taken_; number != pushed_; ++number)
      longer[number & (longer.size() - 1)] = items_[number & (items_.size() - 1)];
    items_.swap(longer);
  }

  std::vector<Item> items_;  ///< a power of two of them
  std::uint64_t taken_ = 0;
  std::uint64_t pushed_ = 0;
};

}  // namespace railyard::fabric
