/// Refusal: operations that fail alone. The target says which of them it does not apply and why; what a rail cannot do
/// is replaced by a frame that says so. The ticket fails with a cause, the flow goes on (docs/protocol.md).
#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

/// Runs of refused records in one notice.
constexpr std::size_t kMostRuns = 32;
static_assert(wire::kRecordsAt + wire::record_bytes(kMostRuns * sizeof(wire::RefusedRecords)) <= wire::kNoticeBytes);
/// An operation with which so many links broke, a chunk of it alone on each, is at fault.
constexpr std::uint8_t kMostTrials = 3;

/// Whether the record begins an operation of the caller's that has a number.
bool numbered(const wire::RecordReader::Record& record) {
  if (record.joined || record.header.kind == wire::RecordKind::reply) return false;
  if (record.header.kind != wire::RecordKind::atomic) return true;
  wire::AtomicBody body;
  std::memcpy(&body, record.body.data(), sizeof body);
  return body.request == 0;
}

}  // namespace

// ---- At the target ----

FailureCause Engine::refusal_cause(const ExposedRegion* exposed_region, const wire::RecordReader::Record& record) {
  if (exposed_region == nullptr) return FailureCause::not_exposed;
  switch (record.header.kind) {
    case wire::RecordKind::put:
      return exposed_region->device >= 0 ? FailureCause::bad_memory : FailureCause::out_of_range;
    case wire::RecordKind::signal:
      if (record.body.size() != sizeof(std::uint64_t)) return FailureCause::malformed;
      return record.header.offset >= exposed_region->signals.size() ? FailureCause::out_of_range
                                                                    : FailureCause::unknown_code;
    case wire::RecordKind::atomic: {
      wire::AtomicBody body;
      if (record.body.size() != sizeof body) return FailureCause::malformed;
      std::memcpy(&body, record.body.data(), sizeof body);
      if (body.width != 4 && body.width != 8) return FailureCause::malformed;
      const std::size_t room = exposed_region->memory.size();
      if (record.header.offset > room || room - record.header.offset < body.width) return FailureCause::out_of_range;
      const auto address = reinterpret_cast<std::uintptr_t>(exposed_region->memory.data()) + record.header.offset;
      return address % body.width != 0 ? FailureCause::misaligned : FailureCause::unknown_code;
    }
    default:
      return FailureCause::unknown_code;
  }
}

/// Its segment is not acknowledged before the origin knows.
void Engine::refuse(Flow& flow, std::uint32_t sequence, std::uint32_t record, std::uint32_t count, FailureCause cause) {
  if (count == 0) return;
  if (!flow.receiver.refuse(sequence, record, count, cause)) {
    return fail_flow(flow, Error(Status::invalid, "the peer sends on though nothing is acknowledged",
                                 {.peer = flow.peer, .sequence = sequence}));
  }
  tend_refusals(flow);
}

void Engine::tend_refusals(Flow& flow) {
  watch(*flow.route);
  if (flow.in_refusing) return;
  flow.in_refusing = true;
  refusing_.push_back(&flow);
  has_chores_ = true;
}

/// Tells peers what was refused, again and again until they confirm it; and confirms what they have refused.
bool Engine::tell_refusals() {
  bool moved = false;
  std::erase_if(refusing_, [&](Flow* flow) {
    if (flow->confirm && send_notice(*flow, {wire::RecordKind::confirmed, 0, 0, 0, flow->confirmed})) {
      flow->confirm = false;
      moved = true;
    }
    const auto refusals = flow->receiver.refusals();
    if (!refusals.empty() && now_ >= flow->refusals_due) {
      const auto body = std::as_bytes(refusals.first(std::min(refusals.size(), kMostRuns)));
      const auto bytes = static_cast<std::uint16_t>(body.size());
      if (send_notice(*flow, {wire::RecordKind::refused, 0, bytes, 0, 0}, body)) {
        flow->refusals_due = now_ + deadline_floor_;
        moved = true;
      }
    }
    flow->in_refusing = flow->confirm || flow->receiver.has_refusals();
    return !flow->in_refusing;
  });
  return moved;
}

void Engine::on_confirmed(Flow& flow, std::uint64_t known) {
  if (!flow.receiver.on_confirmed(known)) return;
  flow.refusals_due = 0;
  flow.receiver.owe_report();  // what was held back can be acknowledged
  report_soon(flow);
}

// ---- At the origin ----

void Engine::on_refused(Flow& flow, std::span<const std::byte> body) {
  if (body.empty() || body.size() % sizeof(wire::RefusedRecords) != 0) {
    ++counts_.dropped_malformed;
    return;
  }
  const Segment* segment = flow.sender.oldest();
  for (; !body.empty(); body = body.subspan(sizeof(wire::RefusedRecords))) {
    wire::RefusedRecords refused;
    std::memcpy(&refused, body.data(), sizeof refused);
    while (segment != nullptr && static_cast<std::int32_t>(segment->sequence - refused.sequence) < 0)
      segment = segment->next;
    // Else it came twice, and is known.
    if (segment != nullptr && segment->sequence == refused.sequence) fail_records(flow, *segment, refused);
    flow.confirmed = refused.pack();
  }
  flow.confirm = true;
  tend_refusals(flow);
}

void Engine::fail_records(Flow& flow, const Segment& segment, const wire::RefusedRecords& refused) {
  const Operation& operation = *segment.operation;
  if (operation.kind != Operation::Kind::frame) {
    ++counts_.dropped_malformed;
    return;
  }
  const std::span<const std::byte> bytes{operation.frame->data, operation.frame->bytes};
  const auto header = wire::parse_header(bytes);
  const auto cause = static_cast<FailureCause>(refused.cause);
  if (operation.submission != 0) return note_failure(flow, operation.submission, segment.sequence, cause);
  // The frame's last operation has the frame's number; the others count down from there.
  std::uint64_t number = operation.number + 1;
  for (wire::RecordReader reader(bytes, *header); const auto record = reader.next();) number -= numbered(*record);
  std::uint32_t index = 0;
  std::uint64_t current = number;
  for (wire::RecordReader reader(bytes, *header); const auto record = reader.next(); ++index) {
    if (numbered(*record)) current = number++;
    if (index < refused.first || index >= refused.first + std::uint32_t{refused.count}) continue;
    if (record->joined || numbered(*record)) {
      note_failure(flow, current, segment.sequence, cause);
    } else if (record->header.kind == wire::RecordKind::atomic) {
      wire::AtomicBody body;
      std::memcpy(&body, record->body.data(), sizeof body);
      std::uint32_t slot = 0;
      if (!slots_.find(body.request, &flow, kSlots, slot)) continue;
      end_slot(slot, cause);
      --flow.sender.fetches;
      count_outstanding(flow, -1);
    }
  }
}

/// Before the operation is complete: whoever sees that sees this.
void Engine::note_failure(Flow& flow, std::uint64_t number, std::uint32_t sequence, FailureCause cause) {
  if (!flow.failures.record({number, flow.peer, sequence, cause})) return;
  any_failed_.store(true, std::memory_order_release);
  log_info("operation {} to {} (sequence {}) failed: {}", number, flow.route->who, sequence, to_string(cause));
  if (flow.inbox != nullptr) flow.inbox->on_refused(number);
}

void Engine::end_slot(std::uint32_t slot, FailureCause cause) {
  if (cause != FailureCause::none) any_failed_.store(true, std::memory_order_release);
  trace_.slot_ended(slots_.number(slot), static_cast<std::uint8_t>(cause));
  const Flow* const flow = slots_.content(slot).flow;
  slots_.finish(slot, cause);
  sampler_.ended(slot, flow);
}

// ---- What fails at the origin ----

/// The operation fails; what of it is under way is waited for, and what is not sent yet never is.
void Engine::fail_operation(Operation& operation, FailureCause cause, std::uint32_t sequence) {
  if (operation.failure != FailureCause::none) return;
  operation.failure = cause;
  if (operation.kind != Operation::Kind::write) return;
  note_failure(*operation.flow, operation.submission, sequence, cause);
  Operation* const companion = operation.companion;
  if (companion == nullptr || companion->whole) return;
  // Its signal has not left: nothing takes its place. A message is told as failed: those behind it are still good.
  std::byte* const record = companion->frame->data + wire::kRecordsAt;
  wire::RecordHeader header;
  std::memcpy(&header, record, sizeof header);
  if (header.kind == wire::RecordKind::message) {
    header.detail |= wire::kFailedMessage;
  } else {
    header.kind = wire::RecordKind::nothing;
    header.exposed_region = 0;
  }
  std::memcpy(record, &header, sizeof header);
  operation.companion = nullptr;
}

/// Makes the frame that goes in the segment's place, so that its number is filled. False: no buffer now.
bool Engine::make_void(Segment& segment) {
  if (segment.voided) return true;
  memory::Buffer* const buffer = frames_->take();
  if (buffer == nullptr) return false;
  wire::RecordHeader record{wire::RecordKind::nothing, 0, 0, 0, 0};
  const Operation& operation = *segment.operation;
  if (operation.companion != nullptr) {
    // Its signal is on its way. The target has it or will, and waits for this before it is applied.
    const Segment* after = operation.flow->sender.oldest();
    while (after != nullptr && after->operation != operation.companion) after = after->next;
    if (after != nullptr) {
      record.exposed_region = 1;
      record.offset = after->sequence;
    }
  }
  buffer->bytes = wire::kRecordsAt;
  wire::FrameWriter::append(buffer->data, buffer->bytes, record);
  segment.void_frame = buffer;
  segment.voided = true;
  return true;
}

/// What is left of a failed operation, in its turn: one frame that says nothing keeps completions in order.
bool Engine::post_void(Flow& flow, Operation& operation) {
  if (operation.kind != Operation::Kind::write) {
    if (operation.started == 0) flow.sender.began_unordered();
    flow.sender.dequeue();
    operation.whole = true;
    if (operation.unfinished != 0) return true;
    finish_operation(&operation);
    if (operation.segments == 0) release_operation(&operation);
    return true;
  }
  Link* const link = flow.sender.may_send(window_) ? Scheduler::link_for_frame(flow, true, 0) : nullptr;
  Segment* const segment = link != nullptr ? segments_.take() : nullptr;
  if (segment == nullptr) return false;
  segment->tag = static_cast<std::uint8_t>(Tag::segment);
  segment->operation = &operation;
  segment->offset = operation.started;
  segment->sequence = flow.sender.next_sequence();
  const fabric::Post answer = make_void(*segment) ? post_segment(flow, *segment, *link) : fabric::Post::busy;
  if (answer != fabric::Post::posted) {
    if (segment->void_frame != nullptr) frames_->give(segment->void_frame);
    segments_.give(segment);
    if (answer == fabric::Post::failed) post_failed(flow, *link);
    return false;
  }
  flow.sender.sent(segment);
  flow.sender.dequeue();
  operation.whole = true;
  ++operation.segments;
  ++operation.unfinished;
  return true;
}

/// The link that carried it broke, the target lacks it, and the rail cannot tell why.
void Engine::note_fault(Segment& segment) {
  Operation& operation = *segment.operation;
  if (operation.kind == Operation::Kind::frame || segment.voided) return;
  ++segment.faults;
  operation.doubted = true;
  if (segment.alone && !operation.cleared) ++operation.faults;
  if (operation.faults >= kMostTrials || segment.faults > kMostTrials)
    fail_operation(operation, FailureCause::bad_memory, segment.sequence);
}

}  // namespace railyard::transport
