/// The contexts that are out on one link, in a ring through the contexts themselves: nothing is allocated.
#pragma once

#include "fabric/pending.hpp"
#include "fabric/rail.hpp"

namespace railyard::fabric {

class InFlight {
 public:
  InFlight() { head_.neighbours = {&head_, &head_}; }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  void add(PostContext* context) {
    context->neighbours = {head_.neighbours[0], &head_};
    head_.neighbours[0]->neighbours[1] = context;
    head_.neighbours[0] = context;
  }
  static void remove(PostContext* context) {
    context->neighbours[0]->neighbours[1] = context->neighbours[1];
    context->neighbours[1]->neighbours[0] = context->neighbours[0];
  }
  /// The oldest, taken out; null when there is none.
  PostContext* take() {
    PostContext* const first = head_.neighbours[1];
    if (first == &head_) return nullptr;
    remove(first);
    return first;
  }
  /// All of them come out of `poll` as failed.
  void end(PendingEvents& events, int error) {
    while (PostContext* const context = take()) events.push_failed(context, error);
  }

 private:
  PostContext head_;
};

}  // namespace railyard::fabric
