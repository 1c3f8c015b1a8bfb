/// Completion: what happens when a unit is acknowledged, delivered, read or given up. Changes state only; posts
/// nothing.
#include <atomic>
#include <cstring>

#include "transport/engine.hpp"

namespace railyard::transport {

void Engine::leave_flight(Unit& unit, bool delivered) {
  if (!unit.in_flight) return;
  unit.in_flight = false;
  Flow& flow = *unit.operation->flow;
  Link& link = flow.route->links[unit.link];
  Share& share = flow.shares[unit.link];
  if (unit.operation->kind == Operation::Kind::frame || unit.voided) {
    link.frame_done();
    --share.frames;
    return;
  }
  share.bytes -= unit.bytes;
  flow.bytes_in_flight -= unit.bytes;
  flow.route->bytes_in_flight -= unit.bytes;
  if (flow.bytes_in_flight == 0) --flow.route->bulk_flows;
  if (unit.faults != 0) end_isolation(unit);
  if (delivered) {
    link.piece_delivered(unit.bytes, unit.stamp, clock_->now());
  } else {
    link.piece_dropped(unit.bytes);
  }
}

/// The rail no longer holds it.
void Engine::let_go(Unit& unit) {
  unit.posted = false;
  --unit.operation->flow->posted;
}

void Engine::on_unit_done(Unit* unit, bool delivered) {
  let_go(*unit);
  if (unit->again) [[unlikely]] {
    // Its target has shut the link out and lacks it: that its buffer is free again says nothing.
    leave_flight(*unit, false);
    if (!unit->finished) return queue_again(*unit->operation->flow, *unit);
    return release_unit(unit);
  }
  leave_flight(*unit, delivered);
  if (!unit->finished && !unit->operation->sequenced()) finish_unit(unit);
  if (unit->finished) release_unit(unit);
}

void Engine::finish_unit(Unit* unit) {
  unit->finished = true;
  Operation* operation = unit->operation;
  if (--operation->unfinished == 0 && operation->whole) finish_operation(operation);
}

void Engine::finish_operation(Operation* operation) {
  Flow& flow = *operation->flow;
  if (flow.failed.load(std::memory_order_relaxed)) return;  // `fail_flow` has answered for it
  if (operation->slot != 0) {
    --flow.out_of_sequence;
    const Slots::Content& content = slots_.content(operation->slot - 1);
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
  }
  if (operation->number != 0) {
    const std::uint64_t before = flow.completed.load(std::memory_order_relaxed);
    flow.completed.store(operation->number, std::memory_order_release);
    count_outstanding(flow, -static_cast<std::int64_t>(operation->number - before));
    counts_.operations_completed += operation->number - before;
    if (flow.inbox != nullptr) flow.inbox->on_completed();
  }
}

void Engine::give_up_atomic(Operation& operation, FailureCause cause) {
  end_slot(operation.slot - 1, cause);
  operation.slot = 0;
  count_outstanding(*operation.flow, -1);
}

void Engine::release_unit(Unit* unit) {
  Operation* operation = unit->operation;
  if (unit->faults != 0) end_isolation(*unit);
  if (unit->void_frame != nullptr) frames_->give(unit->void_frame);
  units_.give(unit);
  if (--operation->units == 0 && operation->whole && operation->unfinished == 0) release_operation(operation);
}

void Engine::release_operation(Operation* operation) {
  if (operation->frame != nullptr) {
    frames_->give(operation->frame);
    --operation->flow->frames;
  }
  operations_.give(operation);
}

/// A unit of a failed flow that no rail holds any more.
void Engine::give_up_unit(Unit* unit) {
  leave_flight(*unit, false);
  if (!unit->finished) {
    unit->finished = true;
    --unit->operation->unfinished;
  }
  release_unit(unit);
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
  if (flow.direct.load(std::memory_order_relaxed)) acquainted(*flow.route);
  // What waits outside the sequence is in no other list; the rest of `replay` is also unacknowledged.
  for (auto* waiting : {&flow.parked, &flow.replay}) {
    for (Unit* unit : *waiting) {
      if (!unit->operation->sequenced()) give_up_unit(unit);
    }
    waiting->clear();
  }
  while (!flow.unacknowledged.empty()) {
    Unit* unit = flow.unacknowledged.pop();
    unit->finished = true;
    --unit->operation->unfinished;
    if (!unit->posted) {
      leave_flight(*unit, false);
      release_unit(unit);
    }
  }
  while (!flow.queue.empty()) {
    Operation* operation = flow.queue.pop();
    operation->whole = true;
    operation->bytes = operation->started;
    if (operation->units == 0) release_operation(operation);
  }
  flow.queued = 0;
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    if (slots_.content(slot).flow == &flow) slots_.finish(slot, FailureCause::peer_lost);
  }
  flow.fetches = 0;
  flow.replies.clear();
  flow.refusals.clear();
  flow.confirm = false;
  flow.held.release([this](memory::Buffer* buffer) { receives_->give(buffer); });
  count_outstanding(flow, -static_cast<std::int64_t>(flow.outstanding.load(std::memory_order_relaxed)));
  if (flow.inbox != nullptr) flow.inbox->on_failed();
}

}  // namespace railyard::transport
