/// The send queue of one queue pair: bounded, its work requests chained until the doorbell is rung, and signalled as
/// seldom as may be. Whoever adds to it has looked whether there is room.
#pragma once

#include <infiniband/verbs.h>

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

  /// `depth`: work requests that the queue pair holds. `name`: the bits above the index in every wr_id.
  void open(ibv_qp* pair, std::uint32_t depth, std::uint64_t name) {
    pair_ = pair;
    name_ = name;
    std::uint32_t slots = 1;
    while (slots < depth) slots *= 2;
    entries_.resize(slots);
    // One in four is told: the queue never waits for the one that would tell.
    every_ = depth / 4 > 0 ? depth / 4 : 1;
    for (std::uint32_t i = 0; i < kChain; ++i) {
      requests_[i].sg_list = &pieces_[i];
      requests_[i].next = i + 1 < kChain ? &requests_[i + 1] : nullptr;
    }
  }

  std::uint32_t outstanding() const { return added_ - retired_; }
  bool holds() const { return held_ != 0; }
  bool chain_full() const { return held_ == kChain; }

  /// The next work request, to be filled in; its one piece is at `sg_list`.
  ibv_send_wr& add(PostContext* context, Event::Kind kind) {
    ibv_send_wr& request = requests_[held_++];
    entries_[added_ & (entries_.size() - 1)] = {context, kind};
    request.wr_id = name_ | (added_++ & kIndexMask);
    request.send_flags = 0;
    if (++unsignalled_ == every_) {
      request.send_flags = IBV_SEND_SIGNALED;
      unsignalled_ = 0;
    }
    return request;
  }

  /// Hands the chain to the device, its last request signalled: so nothing waits for a completion that nobody asked
  /// for. Returns an errno; what was not taken then comes back with the queue pair's end.
  int ring() {
    ibv_send_wr& last = requests_[held_ - 1];
    ibv_send_wr* const after = last.next;
    last.next = nullptr;
    last.send_flags |= IBV_SEND_SIGNALED;
    unsignalled_ = 0;
    ibv_send_wr* bad = nullptr;
    const int code = ibv_post_send(pair_, requests_.data(), &bad);
    last.next = after;
    held_ = 0;
    return code;
  }

  /// How many work requests a completion of number `index` speaks for: itself and those before it; 0: it is of old.
  std::uint32_t covers(std::uint32_t index) const {
    const std::uint32_t count = ((index - retired_) & kIndexMask) + 1;
    return count <= outstanding() ? count : 0;
  }
  /// The oldest that is out; it is out no longer.
  Entry retire() { return entries_[retired_++ & (entries_.size() - 1)]; }

 private:
  ibv_qp* pair_ = nullptr;
  std::uint64_t name_ = 0;
  std::uint32_t added_ = 0;
  std::uint32_t retired_ = 0;
  std::uint32_t held_ = 0;
  std::uint32_t unsignalled_ = 0;
  std::uint32_t every_ = 1;
  std::vector<Entry> entries_;
  std::array<ibv_send_wr, kChain> requests_{};
  std::array<ibv_sge, kChain> pieces_{};
};

}  // namespace railyard::fabric::verbs
