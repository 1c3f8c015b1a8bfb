#include "transport/refusals.hpp"

#include <algorithm>
#include <cstring>

namespace railyard::transport {
namespace {

/// Runs of refused records in one notice.
constexpr std::size_t kMostRuns = 32;
static_assert(wire::kRecordsAt + wire::record_bytes(kMostRuns * sizeof(wire::RefusedRecords)) <= wire::kNoticeBytes);

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

FailureCause Refusals::cause_of(const ExposedRegion* exposed_region, const wire::RecordReader::Record& record) {
  if (exposed_region == nullptr) return FailureCause::not_exposed;
  switch (record.header.kind) {
    case wire::RecordKind::put:
      return exposed_region->device >= 0 ? FailureCause::bad_memory : FailureCause::out_of_range;
    case wire::RecordKind::signal:
      if (record.body.size() != sizeof(std::uint64_t)) return FailureCause::malformed;
      return wire::Signal::of(record.header).index >= exposed_region->signals.size() ? FailureCause::out_of_range
                                                                                     : FailureCause::unknown_code;
    case wire::RecordKind::atomic: {
      wire::AtomicBody body;
      if (record.body.size() != sizeof body) return FailureCause::malformed;
      std::memcpy(&body, record.body.data(), sizeof body);
      if (body.width != 4 && body.width != 8) return FailureCause::malformed;
      const std::size_t room = exposed_region->memory.size();
      const std::uint64_t offset = wire::Atomic::of(record.header).offset;
      if (offset > room || room - offset < body.width) return FailureCause::out_of_range;
      const auto address = reinterpret_cast<std::uintptr_t>(exposed_region->memory.data()) + offset;
      return address % body.width != 0 ? FailureCause::misaligned : FailureCause::unknown_code;
    }
    default:
      return FailureCause::unknown_code;
  }
}

void Refusals::refuse(Flow& flow, std::uint32_t sequence, std::uint32_t record, std::uint32_t count,
                      FailureCause cause) {
  if (count == 0) return;
  if (!flow.receiver.refuse(sequence, record, count, cause)) {
    return completions_.fail(flow, Error(Status::invalid, "the peer sends on though nothing is acknowledged",
                                         {.peer = flow.peer, .sequence = sequence}));
  }
  tend(flow);
}

void Refusals::tend(Flow& flow) {
  watched_.watch(*flow.route);
  if (flow.in_refusing) return;
  flow.in_refusing = true;
  telling_.push_back(&flow);
  core_.has_chores = true;
}

bool Refusals::tell() {
  bool moved = false;
  std::erase_if(telling_, [&](Flow* flow) {
    if (flow->confirm && reports_.send_notice(*flow, wire::Confirmed{flow->confirmed}.header())) {
      flow->confirm = false;
      moved = true;
    }
    const auto refusals = flow->receiver.refusals();
    if (!refusals.empty() && core_.now >= flow->refusals_due) {
      const auto body = std::as_bytes(refusals.first(std::min(refusals.size(), kMostRuns)));
      if (reports_.send_notice(*flow, wire::Refused::header(body.size()), body)) {
        flow->refusals_due = core_.now + core_.deadline_floor;
        moved = true;
      }
    }
    flow->in_refusing = flow->confirm || flow->receiver.has_refusals();
    return !flow->in_refusing;
  });
  return moved;
}

void Refusals::on_confirmed(Flow& flow, std::uint64_t known) {
  if (!flow.receiver.on_confirmed(known)) return;
  flow.refusals_due = 0;
  flow.receiver.owe_report();  // what was held back can be acknowledged
  reports_.owe(flow);
}

void Refusals::forget(Flow& flow) {
  std::erase(telling_, &flow);
  flow.in_refusing = false;
}

// ---- At the origin ----

void Refusals::on_refused(Flow& flow, std::span<const std::byte> body) {
  if (body.empty() || body.size() % sizeof(wire::RefusedRecords) != 0) {
    ++core_.counts.dropped_malformed;
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
  tend(flow);
}

void Refusals::fail_records(Flow& flow, const Segment& segment, const wire::RefusedRecords& refused) {
  const Operation& operation = *segment.operation;
  if (operation.kind != Operation::Kind::frame) {
    ++core_.counts.dropped_malformed;
    return;
  }
  const auto& header = *reinterpret_cast<const wire::FrameHeader*>(operation.frame->data);
  const auto cause = static_cast<FailureCause>(refused.cause);
  if (operation.submission != 0) return completions_.note_failure(flow, operation.submission, segment.sequence, cause);
  // The frame's last operation has the frame's number; the others count down from there.
  std::uint64_t number = operation.number + 1;
  wire::RecordReader::Record record;
  for (wire::RecordReader reader(header); reader.next(record);) number -= numbered(record);
  std::uint32_t index = 0;
  std::uint64_t current = number;
  for (wire::RecordReader reader(header); reader.next(record); ++index) {
    if (numbered(record)) current = number++;
    if (index < refused.first || index >= refused.first + std::uint32_t{refused.count}) continue;
    if (record.joined || numbered(record)) {
      completions_.note_failure(flow, current, segment.sequence, cause);
    } else if (record.header.kind == wire::RecordKind::atomic) {
      wire::AtomicBody body;
      std::memcpy(&body, record.body.data(), sizeof body);
      std::uint32_t slot = 0;
      if (completions_.slots().find(body.request, &flow, kSlots, slot)) completions_.end_fetch(flow, slot, cause);
    }
  }
}

}  // namespace railyard::transport
