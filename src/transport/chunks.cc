/// Chunks: what travels between memory and memory leaves in parts, over all links.
#include "transport/reach.hpp"
#include "transport/transmitter.hpp"

namespace railyard::transport {

bool Transmitter::start_bulk(Flow& flow, Operation& operation) {
  if (operation.failure != FailureCause::none) return post_void(flow, operation);
  if (operation.doubted && !operation.cleared && operation.unfinished != 0) return false;
  if (!flow.sender.may_land()) return false;
  return operation.kind == Operation::Kind::atomic ? post_atomic(flow, operation) : post_chunk(flow, operation);
}

bool Transmitter::post_chunk(Flow& flow, Operation& operation) {
  if (operation.kind == Operation::Kind::write && !flow.sender.may_send(core_.window)) return false;
  for (Scheduler::Tried tried = unreached(flow, operation);;) {
    Link* link =
        Scheduler::link_for_chunk(flow, tried, operation.bytes, operation.bytes - operation.started, core_.now);
    if (link == nullptr) return false;
    switch (post_chunk_on(flow, operation, *link)) {
      case fabric::Post::posted:
        Scheduler::chunk_posted(flow, *link, operation.kind == Operation::Kind::write);
        return true;
      case fabric::Post::failed:
        return false;
      case fabric::Post::busy:
        tried = Scheduler::with(tried, flow, *link);
    }
  }
}

/// NICs are not atomic against each other: the target's first rail that can does it, for everybody.
bool Transmitter::post_atomic(Flow& flow, Operation& operation) {
  Link* chosen = nullptr;
  for (Link& link : flow.route->links) {
    if (!core_.rails[link.rail()].capabilities().native_atomics) continue;
    if (chosen == nullptr || link.remote_rail() < chosen->remote_rail()) chosen = &link;
  }
  if (chosen != nullptr && chosen->up()) return post_chunk_on(flow, operation, *chosen) == fabric::Post::posted;
  completions_.give_up_atomic(operation, FailureCause::rail_failed);
  flow.sender.dequeue();
  operation.whole = true;
  core_.pools.give_operation(&operation);
  return true;
}

fabric::Post Transmitter::post_chunk_on(Flow& flow, Operation& operation, Link& link) {
  Segment* segment = core_.pools.take_segment(operation);
  if (segment == nullptr) return fabric::Post::busy;
  segment->offset = operation.started;
  segment->bytes = Scheduler::chunk_bytes(flow, link, operation, core_.now);
  segment->sequence = flow.sender.next_sequence();
  const fabric::Post answer = poster_.post(flow, *segment, link);
  if (answer != fabric::Post::posted) {
    core_.pools.give_segment(segment);
    return answer;
  }
  ++operation.segments;
  ++operation.unfinished;
  operation.started += segment->bytes;
  if (operation.kind == Operation::Kind::write) {
    flow.sender.sent(segment);
  } else if (segment->offset == 0) {
    flow.sender.began_unordered();
  }
  if (operation.started == operation.bytes) {
    operation.whole = true;
    flow.sender.dequeue();
  }
  return answer;
}

}  // namespace railyard::transport
