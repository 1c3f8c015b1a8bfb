/// The send queue of one queue pair: bounded, its work requests chained until the doorbell is rung, and signalled as
/// seldom as may be. Whoever adds to it has looked whether there is room.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <vector>

#include "fabric/rail.hpp"

namespace railyard::fabric::verbs {

class SendQueue {
 public:
  /// Work requests of one doorbell.
  static constexpr std::uint32_t kChain = 16;
  /// A completion names its work request in so many bits, below the name of the queue pair.
  static constexpr int kIndexBits = 24;
  static constexpr std::uint32_t kIndexMask = (1U << kIndexBits) - 1;

  struct Entry {
    PostContext* context = nullptr;
    Event::Kind kind = Event::Kind::sent;
  };
  struct WorkRequest {
    ibv_send_wr work{};
    ibv_sge sge{};
  };

  SendQueue() = default;
  SendQueue(const SendQueue&) = delete;  // its requests point at each other
  SendQueue& operator=(const SendQueue&) = delete;

  /// `depth`: work requests that the queue pair holds. `name`: the bits above the index in every wr_id.
  void open(ibv_qp* pair, std::uint32_t depth, std::uint64_t name) {
    pair_ = pair;
    name_ = name;
    std::uint32_t slots = 1;
    while (slots < depth) slots *= 2;
    entries_.resize(slots);
    mask_ = slots - 1;
    // A chain is told by its last, so one in four is at least: the queue never waits for the one that would tell.
    end_ = requests_.data() + std::clamp(depth / 4, 1U, kChain);
    for (WorkRequest& request : requests_) request.work.sg_list = &request.sge;
  }

  std::uint32_t outstanding() const { return added_ - retired_; }
  bool holds() const { return next_ != requests_.data(); }
  bool chain_full() const { return next_ == end_; }

  /// The next work request, to be filled in.
  WorkRequest& add(PostContext* context, Event::Kind kind) {
    WorkRequest& request = *next_++;
    Entry& entry = entries_[added_ & mask_];
    entry.context = context;
    entry.kind = kind;
    request.work.wr_id = name_ | (added_++ & kIndexMask);
    request.work.next = &next_->work;
    return request;
  }

  /// Hands the chain to the device, its last request signalled: so nothing waits for a completion that nobody asked
  /// for. Returns an errno; what was not taken then comes back with the queue pair's end.
  int ring() {
    ibv_send_wr& last = next_[-1].work;
    last.next = nullptr;
    last.send_flags |= IBV_SEND_SIGNALED;
    next_ = requests_.data();
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(pair_, &requests_.front().work, &bad);
  }

  bool named(std::uint64_t wr_id) const { return (wr_id ^ name_) >> kIndexBits == 0; }
  /// How many work requests a completion of number `index` speaks for: itself and those before it; 0: it is of old.
  std::uint32_t covers(std::uint32_t index) const {
    const std::uint32_t count = ((index - retired_) & kIndexMask) + 1;
    return count <= outstanding() ? count : 0;
  }
  /// The oldest that is out; it is out no longer.
  Entry retire() { return entries_[retired_++ & mask_]; }

 private:
  ibv_qp* pair_ = nullptr;
  std::uint64_t name_ = 0;
  std::uint32_t added_ = 0;
  std::uint32_t retired_ = 0;
  std::uint32_t mask_ = 0;
  std::vector<Entry> entries_;
  std::array<WorkRequest, kChain + 1> requests_{};  // the last is never posted, only pointed at
  WorkRequest* next_ = requests_.data();
  WorkRequest* end_ = nullptr;
};

}  // namespace railyard::fabric::verbs
