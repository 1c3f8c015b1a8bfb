/// What a dead link has lost is posted again, under the same number. What failed meanwhile is not: a frame that says so
/// goes in its place, so that its number is filled and completions stay in order.
#include <fmt/format.h>

#include "transport/reach.hpp"
#include "transport/transmitter.hpp"

namespace railyard::transport {
namespace {

/// A chunk that was lost so often is not the rails' fault.
constexpr std::uint8_t kMostAttempts = 100;

}  // namespace

/// It was granted when it first went out.
std::uint32_t Transmitter::replay(Flow& flow, std::uint32_t most) {
  std::vector<Segment*>& waiting = flow.sender.replay();
  std::uint32_t posted = 0;
  std::size_t kept = 0;
  bool full = false;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    Segment* const segment = waiting[i];
    const bool patient = segment->faults != 0;  // one that waits to be alone on a link keeps nobody else
    if (!full && posted < most && replay_segment(flow, *segment)) {
      ++posted;
      continue;
    }
    full |= !patient;
    waiting[kept++] = segment;
  }
  waiting.resize(kept);
  if (!waiting.empty() && waiting.front()->attempts >= kMostAttempts) {
    const Segment& segment = *waiting.front();
    completions_.fail(flow, Error(Status::rail_failed,
                                  fmt::format("a chunk of {} bytes for {} was lost {} times over: giving up",
                                              segment.bytes, flow.route->who, segment.attempts),
                                  {flow.peer, flow.route->links[segment.link].rail(), "replay", segment.sequence}));
  }
  return posted;
}

bool Transmitter::replay_segment(Flow& flow, Segment& segment) {
  if (segment.attempts >= kMostAttempts) return false;
  Operation& operation = *segment.operation;
  if (operation.withdrawn) completions_.fail(operation, FailureCause::deregistered, segment.sequence);
  if (operation.failure != FailureCause::none) {
    if (!operation.sequenced()) {
      completions_.finish(segment);
      completions_.release(segment);
      return true;
    }
    if (!make_void(segment)) return false;
  }
  const bool frame = operation.kind == Operation::Kind::frame || segment.voided;
  const bool alone = !frame && segment.faults != 0;
  const Scheduler::Tried none = frame ? 0 : unreached(flow, operation);
  RailStatistics& loser = core_.rails.state(flow.route->links[segment.link].rail()).statistics;
  for (Scheduler::Tried tried = none;;) {
    Link* link = frame   ? Scheduler::link_for_frame(flow, true, tried)
                 : alone ? (tried == none ? Scheduler::link_alone(flow, segment) : nullptr)
                         : Scheduler::link_for_chunk(flow, tried, segment.bytes, segment.bytes, core_.now);
    if (link == nullptr) return false;
    segment.again = segment.lost = false;
    const fabric::Post answer = poster_.post(flow, segment, *link);
    if (answer == fabric::Post::posted) {
      segment.alone = alone;
      operation.on_trial |= alone;
      ++segment.attempts;
      ++core_.counts.segments_replayed;
      ++loser.segments_replayed;
      core_.trace.event(
          {EngineTrace::Kind::replay, flow.peer, link->rail(), segment.attempts, segment.sequence, segment.bytes});
      return true;
    }
    segment.again = true;
    if (answer == fabric::Post::failed) return false;
    tried = Scheduler::with(tried, flow, *link);
  }
}

/// Makes the frame that goes in the segment's place. False: no buffer now.
bool Transmitter::make_void(Segment& segment) {
  if (segment.voided) return true;
  memory::Buffer* const buffer = core_.pools.take_buffer();
  if (buffer == nullptr) return false;
  wire::Nothing record;
  const Operation& operation = *segment.operation;
  if (operation.companion != nullptr) {
    // Its signal is on its way. The target has it or will, and waits for this before it is applied.
    const Segment* after = operation.flow->sender.oldest();
    while (after != nullptr && after->operation != operation.companion) after = after->next;
    if (after != nullptr) record = {true, after->sequence};
  }
  buffer->bytes = wire::kRecordsAt;
  wire::FrameWriter::append(buffer->data, buffer->bytes, record.header());
  segment.void_frame = buffer;
  segment.voided = true;
  return true;
}

/// What is left of a failed operation, in its turn.
bool Transmitter::post_void(Flow& flow, Operation& operation) {
  if (operation.kind != Operation::Kind::write) {
    if (operation.started == 0) flow.sender.began_unordered();
    flow.sender.dequeue();
    operation.whole = true;
    if (operation.unfinished != 0) return true;
    completions_.finish(operation);
    if (operation.segments == 0) core_.pools.give_operation(&operation);
    return true;
  }
  Link* const link = flow.sender.may_send(core_.window) ? Scheduler::link_for_frame(flow, true, 0) : nullptr;
  Segment* const segment = link != nullptr ? core_.pools.take_segment(operation) : nullptr;
  if (segment == nullptr) return false;
  segment->offset = operation.started;
  segment->sequence = flow.sender.next_sequence();
  if (!make_void(*segment) || poster_.post(flow, *segment, *link) != fabric::Post::posted) {
    core_.pools.give_segment(segment);
    return false;
  }
  flow.sender.sent(segment);
  flow.sender.dequeue();
  operation.whole = true;
  ++operation.segments;
  ++operation.unfinished;
  return true;
}

}  // namespace railyard::transport
