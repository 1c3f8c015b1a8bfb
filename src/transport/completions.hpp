/// Completions: the end of segments, operations and flows: what becomes of their structures, and what their callers
/// learn of it (promise 1). Changes state only; posts nothing. With the progress lock held, but for what is said below.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "railyard/operations.hpp"
#include "transport/core.hpp"
#include "transport/exposed_memory.hpp"
#include "transport/flow.hpp"
#include "transport/handshakes.hpp"
#include "transport/latency_sampler.hpp"
#include "transport/slots.hpp"
#include "transport/submitter.hpp"

namespace railyard::transport {

class Completions {
 public:
  using What = telemetry::TraceOperation;
  Completions(Core& core, ExposedMemory& memory, Handshakes& handshakes)
      : core_(core), memory_(memory), handshakes_(handshakes), slots_(kSlots) {}

  // ---- What is submitted ----

  /// What is submitted from now on is of this one, until another comes or it is forgotten.
  void submits(Submitter& submitter) { submitter_ = &submitter; }
  void forget(const Submitter& submitter);
  /// An operation of the flow's sequence. Returns its number.
  std::uint64_t submitted(Flow& flow, What what, std::uint64_t bytes);
  /// One that completes out of sequence, in a slot: its ticket. There must be a slot.
  Ticket submitted_in_slot(Flow& flow, const Slots::Content& content, What what, std::uint64_t bytes);
  bool has_slot() const { return !slots_.empty(); }
  Slots& slots() { return slots_; }
  LatencySampler& sampler() { return sampler_; }

  // ---- Segments ----

  /// The rail no longer holds it.
  static void let_go(Segment& segment) {
    segment.posted = false;
    --segment.operation->flow->posted;
  }
  /// It counts no longer as in flight. `delivered`: because it arrived.
  void leave_flight(Segment& segment, bool delivered);
  /// The same for a frame, where it does count and nothing is traced.
  static void frame_left(Segment& segment) {
    segment.in_flight = false;
    Flow& flow = *segment.operation->flow;
    flow.route->links[segment.link].frame_done();
    --flow.shares[segment.link].frames;
  }
  /// A frame that was timed is acknowledged.
  [[gnu::noinline, gnu::cold]] void end_timing(Segment& segment);
  /// It is acknowledged, delivered or read.
  void finish(Segment& segment);
  /// The same for the flow's frame.
  void finish_frame(Flow& flow, Segment& segment) {
    segment.finished = true;
    if (segment.operation->number != 0) complete_to(flow, segment.operation->number);
  }
  /// Nothing needs it any more.
  void release(Segment& segment) {
    if (&segment != &segment.operation->own) return release_chunk(segment);
    core_.pools.give_frame(segment.operation);
  }
  /// It is over, and not because it arrived; no rail holds it.
  void give_up(Segment& segment);

  // ---- Operations ----

  /// All of it is over, with whatever success.
  void finish(Operation& operation);
  /// A native atomic of which nobody knows whether it took effect: it is not done again.
  void give_up_atomic(Operation& operation, FailureCause cause);
  /// It fails at its origin: what of it is under way is waited for, what is not sent yet never is.
  void fail(Operation& operation, FailureCause cause, std::uint32_t sequence);
  /// The operation of that number has failed. Before it is complete: whoever sees that sees this.
  void note_failure(Flow& flow, std::uint64_t number, std::uint32_t sequence, FailureCause cause);
  /// The operation in the slot is over.
  void end_slot(Flow& flow, std::uint32_t slot, FailureCause cause);
  /// The same for a fetch, whose answer has come or never will.
  void end_fetch(Flow& flow, std::uint32_t slot, FailureCause cause) {
    end_slot(flow, slot, cause);
    --flow.sender.fetches;
  }
  /// Operations under way advance no counter in this memory any more.
  void forget_counters(std::span<const std::uint64_t> counters);

  // ---- Flows ----

  /// Fails everything outstanding to the peer and all that comes later.
  void fail(Flow& flow, Error error);

  // ---- Without the progress lock ----

  /// Whether a slot was ever given out under that number.
  bool slot_known(const Ticket& ticket) const { return ticket.slot - 1 < kSlots && slots_.was_taken(ticket.number); }
  bool slot_done(const Ticket& ticket) const { return slots_.done(ticket.slot - 1, ticket.number); }
  /// How an operation out of sequence that is done has failed; nothing: it has not.
  std::optional<Failure> slot_failure(const Ticket& ticket) const { return slots_.failures().find(ticket.number); }
  Status slot_status(const Ticket& ticket) const {
    const auto failure = slot_failure(ticket);
    return failure ? status_of(failure->cause) : Status::ok;
  }
  /// A failed operation of that flow's that nobody has asked about, once.
  std::optional<Error> untold_failure(const Flow& flow) const;
  /// Operations of all flows that are not complete yet.
  std::uint64_t outstanding() const { return outstanding_.load(std::memory_order_acquire); }
  /// An operation or a flow has failed, at any time.
  bool any_failed() const { return any_failed_.load(std::memory_order_acquire); }

 private:
  void count_outstanding(Flow& flow, std::int64_t change);
  void count_for_submitter(What what, std::uint64_t bytes) {
    Submitter::Count& count = submitter_->of(what);
    ++count.operations;
    count.bytes += bytes;
  }
  [[gnu::noinline, gnu::cold]] void note_submission(const Flow& flow, std::uint64_t number, What what,
                                                    std::uint64_t bytes);
  [[gnu::noinline, gnu::cold]] void note_slot(const Flow& flow, std::uint32_t slot, What what, std::uint64_t bytes);
  void complete_to(Flow& flow, std::uint64_t number);
  void chunk_left(Flow& flow, Link& link, Segment& segment, bool delivered);
  void finish_chunk(Operation& operation);
  void release_chunk(Segment& segment);
  static void abandon(Segment& segment);

  Core& core_;
  ExposedMemory& memory_;
  Handshakes& handshakes_;
  Slots slots_;
  std::atomic<std::uint64_t> outstanding_{0};
  std::atomic<bool> any_failed_{false};
  LatencySampler sampler_;
  Submitter nobody_;  ///< of what no user has claimed
  Submitter* submitter_ = &nobody_;
};

// What every small operation goes through.

inline void Completions::count_outstanding(Flow& flow, std::int64_t change) {
  // The progress lock's holder is the only writer: plain loads and stores, no locked instruction. Release: whoever
  // reads "nothing outstanding" sees everything those operations did.
  const auto delta = static_cast<std::uint64_t>(change);
  flow.outstanding.store(flow.outstanding.load(std::memory_order_relaxed) + delta, std::memory_order_release);
  outstanding_.store(outstanding_.load(std::memory_order_relaxed) + delta, std::memory_order_release);
}

inline std::uint64_t Completions::submitted(Flow& flow, What what, std::uint64_t bytes) {
  count_outstanding(flow, 1);
  // The progress lock's holder is the only writer.
  const std::uint64_t number = flow.submitted.load(std::memory_order_relaxed) + 1;
  flow.submitted.store(number, std::memory_order_relaxed);
  count_for_submitter(what, bytes);
  if (sampler_.due()) [[unlikely]]
    note_submission(flow, number, what, bytes);
  return number;
}

inline void Completions::leave_flight(Segment& segment, bool delivered) {
  if (!segment.in_flight) return;
  Flow& flow = *segment.operation->flow;
  Link& link = flow.route->links[segment.link];
  core_.trace.left(segment, link, delivered);
  if (segment.operation->kind == Operation::Kind::frame || segment.voided) return frame_left(segment);
  segment.in_flight = false;
  chunk_left(flow, link, segment, delivered);
}

/// The flow's operations up to that number are complete.
inline void Completions::complete_to(Flow& flow, std::uint64_t number) {
  const std::uint64_t before = flow.completed.load(std::memory_order_relaxed);
  flow.completed.store(number, std::memory_order_release);
  count_outstanding(flow, -static_cast<std::int64_t>(number - before));
  core_.counts.operations_completed += number - before;
  sampler_.completed(flow, number);
  core_.trace.completed(flow, number);
  if (flow.inbox != nullptr) flow.inbox->on_completed();
}

inline void Completions::finish(Segment& segment) {
  Operation& operation = *segment.operation;
  if (operation.kind == Operation::Kind::frame) return finish_frame(*operation.flow, segment);
  segment.finished = true;
  finish_chunk(operation);
}

}  // namespace railyard::transport
