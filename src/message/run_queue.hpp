/// RunQueue: channels that have something to do, first come first served, linked through themselves. With the progress
/// lock held.
#pragma once

#include <utility>

#include "message/channel_state.hpp"

namespace railyard::message {

class RunQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  /// It is in no queue.
  void push(ChannelState& channel) {
    channel.next_ready = nullptr;
    (first_ == nullptr ? first_ : last_->next_ready) = &channel;
    last_ = &channel;
  }
  /// All of them, each with the next behind it; the queue is empty then.
  ChannelState* take_all() { return std::exchange(first_, nullptr); }
  /// For one that ends: it is in this queue.
  void erase(ChannelState& channel) {
    ChannelState* before = nullptr;
    for (ChannelState* each = first_; each != &channel; each = each->next_ready) before = each;
    (before == nullptr ? first_ : before->next_ready) = channel.next_ready;
    if (last_ == &channel) last_ = before;
  }

 private:
  ChannelState* first_ = nullptr;
  ChannelState* last_ = nullptr;
};

}  // namespace railyard::message
