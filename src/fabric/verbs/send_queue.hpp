/// The send queue of one queue pair: bounded, its work requests chained until the doorbell is rung, and signalled as
/// seldom as may be. Places are granted before they are taken, so that a post looks at one limit.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>

#include "fabric/rail.hpp"

namespace railyard::fabric::verbs {

class SendQueue {
 public:
  /// Work requests of one doorbell.
  static constexpr std::uint32_t kChain = 16;
  /// The deepest queue.
  static constexpr std::uint32_t kMostDepth = 256;
  /// A completion names its work request in so many bits, below the name of the queue pair.
  static constexpr int kIndexBits = 24;
  /// Between the two is a bit that is never set: a difference of two numbers that is small is one of the same name.
  static constexpr int kNameShift = kIndexBits + 1;

  struct Entry {
    PostContext* context = nullptr;
    Event::Kind kind = Event::Kind::sent;
  };
  struct WorkRequest {
    ibv_send_wr work{};
    ibv_sge sge{};
  };

  SendQueue() { next_ = requests_.data(); }  // not before those are there
  SendQueue(const SendQueue&) = delete;      // its requests point at each other
  SendQueue& operator=(const SendQueue&) = delete;

  /// `depth`: work requests that the queue pair holds. `name`: the bits above the index in every wr_id.
  void open(ibv_qp* pair, std::uint32_t depth, std::uint64_t name) {
    pair_ = pair;
    name_ = number_ = limit_ = oldest_ = name;
    // A chain is told by its last, so one in four is at least: the queue never waits for the one that would tell.
    end_ = requests_.data() + std::clamp(depth / 4, 1U, kChain);
    for (WorkRequest& request : requests_) request.work.sg_list = &request.sge;
  }

  /// A wr_id that its next work request may have.
  std::uint64_t number() const { return number_; }
  std::uint32_t outstanding() const { return static_cast<std::uint32_t>(number_ - oldest_); }
  bool holds() const { return next_ != requests_.data(); }
  bool chain_full() const { return next_ == end_; }

  /// Whether `add` may be called: a place is granted and free.
  bool has_place() const { return number_ != limit_; }
  /// How many places may be granted: what is left of the chain and of the numbers. All places have been taken.
  std::uint32_t grantable() const {
    constexpr std::uint64_t kNumbers = std::uint64_t{1} << kIndexBits;
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(static_cast<std::uint64_t>(end_ - next_), name_ + kNumbers - number_));
  }
  void grant(std::uint32_t places) { limit_ += places; }
  /// Takes back what was granted and not used; returns how many places.
  std::uint32_t take_back() {
    const auto places = static_cast<std::uint32_t>(limit_ - number_);
    limit_ = number_;
    return places;
  }
  /// Nothing is out: numbers begin again.
  void renumber() { number_ = limit_ = oldest_ = name_; }

  /// The next work request, to be filled in and then added.
  WorkRequest& next(PostContext* context, Event::Kind kind) {
    contexts_[number_ % kMostDepth] = context;
    kinds_[number_ % kMostDepth] = kind;
    next_->work.wr_id = number_;
    return *next_;
  }
  void add() {
    ibv_send_wr& work = next_++->work;
    work.next = &next_->work;
    ++number_;
  }

  /// Hands the chain to the device, its last request signalled: so nothing waits for a completion that nobody asked
  /// for. Returns an errno; what was not taken then comes back with the queue pair's end.
  int ring() {
    ibv_send_wr& last = next_[-1].work;
    last.next = nullptr;
    last.send_flags |= IBV_SEND_SIGNALED;
    next_ = requests_.data();
    return ibv_post_send(pair_, &requests_.front().work, &bad_);
  }

  /// Whether the work request with this wr_id is out; if not, it is of old, or of another queue pair.
  bool is_out(std::uint64_t wr_id) const { return wr_id - oldest_ < number_ - oldest_; }
  /// How many are out before it: its completion speaks for them too.
  std::uint32_t before(std::uint64_t wr_id) const { return static_cast<std::uint32_t>(wr_id - oldest_); }
  /// The oldest that is out; it is out no longer.
  Entry retire() {
    const std::uint64_t at = oldest_++ % kMostDepth;
    return {contexts_[at], kinds_[at]};
  }

 private:
  ibv_send_wr* bad_ = nullptr;  ///< nobody reads it
  // Numbers are wr_ids: oldest_ <= number_ <= limit_.
  std::uint64_t number_ = 0;  ///< of the next work request
  std::uint64_t limit_ = 0;   ///< the first that is not granted
  std::uint64_t oldest_ = 0;  ///< that is out
  std::uint64_t name_ = 0;
  ibv_qp* pair_ = nullptr;
  WorkRequest* next_ = nullptr;
  WorkRequest* end_ = nullptr;
  std::array<PostContext*, kMostDepth> contexts_{};
  std::array<Event::Kind, kMostDepth> kinds_{};
  std::array<WorkRequest, kChain + 1> requests_{};  // the last is never posted, only pointed at

 public:
  // The rail's own: a list of those that may hold a chain. Not above, where posts look.
  SendQueue* rings_after = nullptr;
  bool waits_to_ring = false;  ///< it is in the list
};

}  // namespace railyard::fabric::verbs
