/// Completion: what happens when a segment is acknowledged, delivered, read or given up. Changes state only; posts
/// nothing.
#include <atomic>
#include <cstring>

#include "transport/engine.hpp"

namespace railyard::transport {

[[gnu::hot]] void Engine::leave_flight(Segment& segment, bool delivered) {
  if (!segment.in_flight) return;
  segment.in_flight = false;
  Flow& flow = *segment.operation->flow;
  Link& link = flow.route->links[segment.link];
  Share& share = flow.shares[segment.link];
  trace_.left(segment, link, delivered);
  if (segment.operation->kind == Operation::Kind::frame || segment.voided) {
    link.frame_done();
    --share.frames;
    return;
  }
  share.bytes -= segment.bytes;
  flow.bytes_in_flight -= segment.bytes;
  flow.route->bytes_in_flight -= segment.bytes;
  if (flow.bytes_in_flight == 0) --flow.route->bulk_flows;
  if (segment.faults != 0) {
    Scheduler::end_alone(segment);
    segment.operation->cleared |= segment.alone && delivered;
  }
  if (delivered) {
    const std::int64_t now = clock_->now();
    link.chunk_delivered(segment.bytes, segment.stamp, now);
    if (telemetry_ != nullptr) telemetry_->chunk_took(link, static_cast<std::uint64_t>(now - segment.stamp.posted_at));
  } else {
    link.chunk_dropped(segment.bytes);
  }
}

/// The rail no longer holds it.
void Engine::let_go(Segment& segment) {
  segment.posted = false;
  --segment.operation->flow->posted;
}

[[gnu::hot]] void Engine::on_segment_done(Segment* segment, bool delivered) {
  let_go(*segment);
  if (segment->again) [[unlikely]] {
    // Its target has shut the link out and lacks it: that its buffer is free again says nothing.
    leave_flight(*segment, false);
    if (!segment->finished) return queue_again(*segment->operation->flow, *segment);
    return release_segment(segment);
  }
  leave_flight(*segment, delivered);
  if (!segment->finished && !segment->operation->sequenced()) finish_segment(segment);
  if (segment->finished) release_segment(segment);
}

void Engine::finish_segment(Segment* segment) {
  segment->finished = true;
  Operation* operation = segment->operation;
  if (--operation->unfinished == 0 && operation->whole) finish_operation(operation);
}

[[gnu::hot]] void Engine::finish_operation(Operation* operation) {
  Flow& flow = *operation->flow;
  if (flow.failed.load(std::memory_order_relaxed)) return;  // `fail_flow` has answered for it
  if (operation->slot != 0) {
    flow.sender.ended_unordered();
    Slots::Content& content = slots_.content(operation->slot - 1);
    if (content.failure == FailureCause::none) content.failure = operation->failure;
    if (--content.parts != 0) return;
    operation->failure = content.failure;
    if (content.withdrawn) operation->failure = FailureCause::deregistered;
    if (content.before != nullptr && operation->failure == FailureCause::none)
      std::memcpy(content.before, operation->frame->data, sizeof(std::uint64_t));  // a native atomic
    end_slot(operation->slot - 1, operation->failure);
    count_outstanding(flow, -1);
    ++counts_.operations_completed;
  }
  if (operation->counter != nullptr && operation->failure == FailureCause::none) {
    // Release: whoever sees the counter may reuse the source.
    std::atomic_ref<std::uint64_t>(*operation->counter).fetch_add(operation->counter_value, std::memory_order_release);
    if (!mirrored_counters_.empty()) [[unlikely]]
      note_counter(operation->counter);
  }
  if (operation->number != 0) {
    const std::uint64_t before = flow.completed.load(std::memory_order_relaxed);
    flow.completed.store(operation->number, std::memory_order_release);
    count_outstanding(flow, -static_cast<std::int64_t>(operation->number - before));
    counts_.operations_completed += operation->number - before;
    sampler_.completed(flow, operation->number);
    trace_.completed(flow, operation->number);
    if (flow.inbox != nullptr) flow.inbox->on_completed();
  }
}

void Engine::give_up_atomic(Operation& operation, FailureCause cause) {
  end_slot(operation.slot - 1, cause);
  operation.slot = 0;
  count_outstanding(*operation.flow, -1);
}

void Engine::release_segment(Segment* segment) {
  Operation* operation = segment->operation;
  if (segment->faults != 0) Scheduler::end_alone(*segment);
  if (segment->void_frame != nullptr) frames_->give(segment->void_frame);
  if (segment != &operation->own) segments_.give(segment);
  if (--operation->segments == 0 && operation->whole && operation->unfinished == 0) release_operation(operation);
}

void Engine::release_operation(Operation* operation) {
  if (operation->frame != nullptr) {
    frames_->give(operation->frame);
    --operation->flow->sender.frames;
  }
  operations_.give(operation);
}

/// A segment of a failed flow that no rail holds any more.
void Engine::give_up_segment(Segment* segment) {
  leave_flight(*segment, false);
  if (!segment->finished) {
    segment->finished = true;
    --segment->operation->unfinished;
  }
  release_segment(segment);
}

std::optional<Error> Engine::untold_failure(int peer) const {
  const Flow* const flow = existing_flow(peer);
  if (flow == nullptr) return std::nullopt;
  if (const auto failure = flow->failures.take_untold()) return to_error(*failure);
  if (const auto failure = slots_.failures().take_untold(peer)) return to_error(*failure);
  return std::nullopt;
}

void Engine::fail_flow(Flow& flow, Error error) {
  if (flow.failed.load(std::memory_order_relaxed)) return;
  flow.error = std::move(error);
  flow.lost_operations.store(flow.outstanding.load(std::memory_order_relaxed) != 0, std::memory_order_relaxed);
  // Release: whoever sees `failed` sees the error.
  flow.failed.store(true, std::memory_order_release);
  any_failed_.store(true, std::memory_order_release);
  trace_.flow_ended(flow);
  if (flow.direct.load(std::memory_order_relaxed)) finish_handshake(*flow.route);
  flow.sender.end([this](Segment* waiting) { give_up_segment(waiting); },
                  [this](Segment* unacknowledged) {
                    unacknowledged->finished = true;
                    --unacknowledged->operation->unfinished;
                    if (unacknowledged->posted) return;
                    leave_flight(*unacknowledged, false);
                    release_segment(unacknowledged);
                  },
                  [this](Operation* queued) {
                    queued->whole = true;
                    queued->bytes = queued->started;
                    if (queued->segments == 0) release_operation(queued);
                  });
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    if (slots_.content(slot).flow != &flow) continue;
    sampler_.forget(slot);
    slots_.finish(slot, FailureCause::peer_lost);
  }
  flow.sender.fetches = 0;
  flow.receiver.end([this](memory::Buffer* buffer) { receives_->give(buffer); });
  if (flow.applying) {
    receives_->give(flow.applying->buffer);
    flow.applying.reset();
    words_.forget(flow);
  }
  flow.confirm = false;
  count_outstanding(flow, -static_cast<std::int64_t>(flow.outstanding.load(std::memory_order_relaxed)));
  if (flow.inbox != nullptr) flow.inbox->on_failed();
}

}  // namespace railyard::transport
