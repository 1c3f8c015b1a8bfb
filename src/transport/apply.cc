/// What a record of a frame does, of whatever kind it is. Puts and signals in the host's memory come here only to be
/// refused.
#include <cstring>

#include "transport/applier.hpp"

namespace railyard::transport {

bool Applier::apply_rest(Flow& flow, FrameProgress frame) { return apply(flow, frame); }

/// The record at hand, which no shorter way has applied.
Applier::Applied Applier::apply_record(Flow& flow, FrameProgress frame) {
  wire::RecordReader rest = frame.reader();
  wire::RecordReader::Record record;
  rest.next(record);
  if (frame.skip) {
    if (record.header.kind != wire::RecordKind::message) return Applied::yes;
    wire::Message::fail(record.header);
  }
  FailureCause cause = FailureCause::none;
  const Applied applied = apply_any(flow, record, rest, cause);
  if (applied == Applied::refused) refuse(flow, frame, 1, cause);
  if (applied != Applied::later) return applied;
  if (flow.failed.load(std::memory_order_relaxed)) {  // by a refusal before this
    memory_.words().forget(flow);
  } else {
    flow.applying = frame;
  }
  return Applied::later;
}

/// What is refused, its origin hears of. A fetch hears by its reply.
Applier::Applied Applier::apply_any(Flow& flow, const wire::RecordReader::Record& record,
                                    const wire::RecordReader& rest, FailureCause& cause) {
  const wire::RecordHeader& header = record.header;
  if (header.kind == wire::RecordKind::reply) {
    apply_reply(flow, record);
    return Applied::yes;
  }
  if (header.kind == wire::RecordKind::message) {
    if (flow.inbox != nullptr && flow.inbox->on_message(wire::Message::of(header), record.body)) return Applied::yes;
    ++core_.counts.dropped_malformed;
    cause = FailureCause::malformed;
    return Applied::refused;
  }
  if (header.kind == wire::RecordKind::nothing) {
    const auto nothing = wire::Nothing::of(header);
    if (nothing.and_first) flow.receiver.skip(nothing.sequence);
    return Applied::yes;
  }
  // Of puts, signals and atomics alike.
  const ExposedRegion* const region = memory_.find(wire::Put::of(header).exposed_region, flow.route->world);
  if (region != nullptr && (region->device >= 0 || region->mirrored != nullptr)) [[unlikely]] {
    if (header.kind == wire::RecordKind::put && region->device >= 0) {
      const Applied begun = begin_put(flow, *region, record, rest);
      if (begun != Applied::refused) return begun;
    } else if (begin_word(flow, *region, record)) {
      return Applied::later;
    }
  }
  bool answered = false;
  const bool atomic = header.kind == wire::RecordKind::atomic;
  if (atomic ? apply_atomic(flow, region, record, answered) : apply_plain(memory_, flow.route->world, record))
    return Applied::yes;
  ++(region == nullptr ? core_.counts.dropped_stale : core_.counts.dropped_malformed);
  cause = Refusals::cause_of(region, record);
  return answered ? Applied::yes : Applied::refused;
}

/// `answered`: its origin hears what became of it, also where it is not applied.
bool Applier::apply_atomic(Flow& flow, const ExposedRegion* region, const wire::RecordReader::Record& record,
                           bool& answered) {
  wire::AtomicBody body;
  if (record.body.size() != sizeof body) return false;
  std::memcpy(&body, record.body.data(), sizeof body);
  Reply reply{body.request, 0, 0};
  const auto atomic = wire::Atomic::of(record.header);
  const bool good =
      region != nullptr && transport::apply_atomic(*region, atomic.offset, atomic.code, body, reply.value);
  if (!good) reply.status = static_cast<std::uint8_t>(Refusals::cause_of(region, record));
  if (body.request == 0) return good;
  if (flow.receiver.replies.size() >= kMostFetches) return false;  // more questions than the peer may ask at a time
  flow.receiver.replies.push_back(reply);
  answered = true;
  transmitter_.activate(flow);
  return good;
}

void Applier::apply_reply(Flow& flow, const wire::RecordReader::Record& record) {
  Slots& slots = completions_.slots();
  std::uint32_t slot = 0;
  std::uint64_t value = 0;
  const auto answer = wire::Answer::of(record.header);
  if (record.body.size() != sizeof value || !slots.find(answer.request, &flow, kSlots, slot)) {
    ++core_.counts.dropped_stale;
    return;
  }
  std::memcpy(&value, record.body.data(), sizeof value);
  const Slots::Content& content = slots.content(slot);
  auto cause = static_cast<FailureCause>(answer.cause);
  if (content.withdrawn) {
    cause = FailureCause::deregistered;
  } else if (cause == FailureCause::none) {
    std::memcpy(content.before, &value, content.width);  // little-endian: the low bytes come first
  }
  completions_.end_fetch(flow, slot, cause);
  ++core_.counts.operations_completed;
}

/// So many records from the one at hand on.
void Applier::refuse(Flow& flow, const FrameProgress& frame, std::uint32_t count, FailureCause cause) {
  refusals_.refuse(flow, frame.header().sequence, frame.index, count, cause);
}

/// The record at hand is malformed, and with it all that follows.
void Applier::refuse_rest(Flow& flow, const FrameProgress& frame) {
  ++core_.counts.dropped_malformed;
  refuse(flow, frame, frame.header().records - frame.index, FailureCause::malformed);
}

}  // namespace railyard::transport
