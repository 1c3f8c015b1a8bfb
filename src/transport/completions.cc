#include "transport/completions.hpp"

#include <cstring>

#include "base/log.hpp"
#include "transport/scheduler.hpp"

namespace railyard::transport {
namespace {

using Sampled = LatencySampler::Kind;

}  // namespace

// ---- What is submitted ----

void Completions::forget(const Submitter& submitter) {
  sampler_.forget(submitter);
  if (submitter_ == &submitter) submitter_ = &nobody_;
}

void Completions::note_submission(const Flow& flow, std::uint64_t number, What what, std::uint64_t bytes) {
  const Sampled sampled = flow.inbox != nullptr  ? Sampled::message
                          : what == What::atomic ? Sampled::atomic
                                                 : Sampled::put;
  sampler_.submitted(flow, number, sampled, *submitter_);
  core_.trace.submitted(flow, number, what, bytes, submitter_->number);
}

Ticket Completions::submitted_in_slot(Flow& flow, const Slots::Content& content, What what, std::uint64_t bytes) {
  const std::uint32_t slot = slots_.take(content);
  count_for_submitter(what, bytes);
  if (sampler_.due()) [[unlikely]]
    note_slot(flow, slot, what, bytes);
  count_outstanding(flow, 1);
  return {slots_.number(slot), flow.peer, slot + 1};
}

void Completions::note_slot(const Flow& flow, std::uint32_t slot, What what, std::uint64_t bytes) {
  const Sampled sampled = what == What::get ? Sampled::get : what == What::atomic ? Sampled::atomic : Sampled::put;
  sampler_.took(slot, &slots_, sampled, *submitter_);
  core_.trace.slot_taken(flow, slots_.number(slot), what, bytes, submitter_->number);
}

// ---- Segments ----

void Completions::chunk_left(Flow& flow, Link& link, Segment& segment, bool delivered) {
  flow.shares[segment.link].bytes -= segment.bytes;
  flow.bytes_in_flight -= segment.bytes;
  flow.route->bytes_in_flight -= segment.bytes;
  if (flow.bytes_in_flight == 0) --flow.route->bulk_flows;
  if (segment.faults != 0) {
    Scheduler::end_alone(segment);
    segment.operation->cleared |= segment.alone && delivered;
  }
  if (delivered) {
    const std::int64_t now = core_.clock->now();
    link.chunk_delivered(segment.bytes, segment.stamp, now);
    if (core_.telemetry != nullptr)
      core_.telemetry->chunk_took(link, static_cast<std::uint64_t>(now - segment.stamp.posted_at));
  } else {
    link.chunk_dropped(segment.bytes);
  }
}

void Completions::end_timing(Segment& segment) {
  segment.timed = false;
  if (core_.telemetry == nullptr) return;
  const Link& link = segment.operation->flow->route->links[segment.link];
  core_.telemetry->frame_took(link, static_cast<std::uint64_t>(core_.clock->now() - segment.stamp.posted_at));
}

void Completions::finish_chunk(Operation& operation) {
  if (--operation.unfinished == 0 && operation.whole) finish(operation);
}

void Completions::release_chunk(Segment& segment) {
  Operation* const operation = segment.operation;
  if (segment.faults != 0) Scheduler::end_alone(segment);
  core_.pools.give_segment(&segment);
  if (--operation->segments == 0 && operation->whole && operation->unfinished == 0)
    core_.pools.give_operation(operation);
}

/// It is over, and not because it arrived.
void Completions::abandon(Segment& segment) {
  segment.finished = true;
  if (segment.operation->kind != Operation::Kind::frame) --segment.operation->unfinished;
}

void Completions::give_up(Segment& segment) {
  leave_flight(segment, false);
  if (!segment.finished) abandon(segment);
  release(segment);
}

// ---- Operations ----

void Completions::finish(Operation& operation) {
  Flow& flow = *operation.flow;
  if (flow.failed.load(std::memory_order_relaxed)) return;  // its end has answered for it
  if (operation.slot != 0) {
    flow.sender.ended_unordered();
    const std::uint32_t slot = operation.slot - 1;
    Slots::Content& content = slots_.content(slot);
    if (content.failure == FailureCause::none) content.failure = operation.failure;
    if (--content.parts != 0) return;
    operation.failure = content.withdrawn ? FailureCause::deregistered : content.failure;
    if (content.before != nullptr && operation.failure == FailureCause::none)
      std::memcpy(content.before, operation.frame->data, sizeof(std::uint64_t));  // a native atomic
    end_slot(flow, slot, operation.failure);
    ++core_.counts.operations_completed;
  }
  if (operation.counter != nullptr && operation.failure == FailureCause::none) {
    // Release: whoever sees the counter may reuse the source.
    std::atomic_ref<std::uint64_t>(*operation.counter).fetch_add(operation.counter_value, std::memory_order_release);
    memory_.advanced(operation.counter);
  }
  if (operation.number != 0) complete_to(flow, operation.number);
}

void Completions::give_up_atomic(Operation& operation, FailureCause cause) {
  end_slot(*operation.flow, operation.slot - 1, cause);
  operation.slot = 0;
}

void Completions::end_slot(Flow& flow, std::uint32_t slot, FailureCause cause) {
  if (cause != FailureCause::none) any_failed_.store(true, std::memory_order_release);
  core_.trace.slot_ended(slots_.number(slot), static_cast<std::uint8_t>(cause));
  slots_.finish(slot, cause);
  sampler_.ended(slot, &flow);
  count_outstanding(flow, -1);
}

void Completions::note_failure(Flow& flow, std::uint64_t number, std::uint32_t sequence, FailureCause cause) {
  if (!flow.failures.record({number, flow.peer, sequence, cause})) return;
  any_failed_.store(true, std::memory_order_release);
  log_info("operation {} to {} (sequence {}) failed: {}", number, flow.route->who, sequence, to_string(cause));
  if (flow.inbox != nullptr) flow.inbox->on_refused(number);
}

void Completions::fail(Operation& operation, FailureCause cause, std::uint32_t sequence) {
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
    wire::Message::fail(header);
  } else {
    const std::uint16_t length = header.length;  // its body stays, and says nothing
    header = wire::Nothing{}.header();
    header.length = length;
  }
  std::memcpy(record, &header, sizeof header);
  operation.companion = nullptr;
}

void Completions::forget_counters(std::span<const std::uint64_t> counters) {
  core_.pools.for_each_operation([counters](Operation& operation) {
    const std::uint64_t* const counter = operation.counter;
    if (counter >= counters.data() && counter < counters.data() + counters.size()) operation.counter = nullptr;
  });
}

std::optional<Error> Completions::untold_failure(const Flow& flow) const {
  if (const auto failure = flow.failures.take_untold()) return to_error(*failure);
  if (const auto failure = slots_.failures().take_untold(&flow)) return to_error(*failure);
  return std::nullopt;
}

// ---- Flows ----

void Completions::fail(Flow& flow, Error error) {
  if (flow.failed.load(std::memory_order_relaxed)) return;
  flow.error = std::move(error);
  flow.lost_operations.store(flow.outstanding.load(std::memory_order_relaxed) != 0, std::memory_order_relaxed);
  // Release: whoever sees `failed` sees the error.
  flow.failed.store(true, std::memory_order_release);
  any_failed_.store(true, std::memory_order_release);
  core_.trace.flow_ended(flow);
  if (flow.direct.load(std::memory_order_relaxed)) handshakes_.finish(*flow.route);
  flow.sender.end([this](Segment* waiting) { give_up(*waiting); },
                  [this](Segment* unacknowledged) {
                    abandon(*unacknowledged);
                    if (unacknowledged->posted) return;
                    leave_flight(*unacknowledged, false);
                    release(*unacknowledged);
                  },
                  [this](Operation* queued) {
                    queued->whole = true;
                    queued->bytes = queued->started;
                    if (queued->segments == 0) core_.pools.give_operation(queued);
                  });
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    if (slots_.content(slot).flow != &flow) continue;
    sampler_.forget(slot);
    slots_.finish(slot, FailureCause::peer_lost);
  }
  flow.sender.fetches = 0;
  flow.receiver.end([this](memory::Buffer* buffer) { core_.rails.release(buffer); });
  if (flow.applying) {
    core_.rails.release(flow.applying->buffer);
    flow.applying.reset();
    memory_.words().forget(flow);
  }
  flow.confirm = false;
  count_outstanding(flow, -static_cast<std::int64_t>(flow.outstanding.load(std::memory_order_relaxed)));
  if (flow.inbox != nullptr) flow.inbox->on_failed();
}

}  // namespace railyard::transport
