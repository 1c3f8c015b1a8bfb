/// Submissions: what callers hand to the engine becomes frames and operations of a flow, and leaves if it may. Nothing
/// here waits: each try_ answers false for "no room now", and then nothing was changed. Small operations and messages
/// travel in frames (submit.cc), the rest between memory and memory (bulk.cc, vector.cc).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "railyard/operations.hpp"
#include "transport/completions.hpp"
#include "transport/core.hpp"
#include "transport/records.hpp"
#include "transport/transmitter.hpp"

namespace railyard::transport {

class Submissions {
 public:
  Submissions(Core& core, Completions& completions, Transmitter& transmitter)
      : core_(core), completions_(completions), transmitter_(transmitter) {}

  /// Records that travel in one frame. `number` names the operation.
  [[gnu::hot]] bool try_records(Flow& flow, const PutRecord* put, const SignalRecord* signal, std::uint64_t& number);
  [[gnu::hot]] bool try_message(Flow& flow, const MessageRecord& message, std::uint64_t& number);
  bool try_atomic(Flow& flow, const AtomicRecord& atomic, void* before, Ticket& ticket);

  /// An ordered write over all links and, after it, a signal (or null) or a message.
  bool try_write(Flow& flow, const Bulk& bulk, const SignalRecord* signal, std::uint64_t& number);
  bool try_write(Flow& flow, const Bulk& bulk, const MessageRecord& message, std::uint64_t& number);
  /// A write outside the sequence, or a read.
  bool try_unordered(Flow& flow, const Bulk& bulk, Operation::Kind kind, Ticket& ticket);
  /// An atomic of the target's NIC, outside the sequence; `before` may be null.
  bool try_native(Flow& flow, const Bulk& at, const fabric::AtomicRequest& request, void* before, Ticket& ticket);

  /// Ordered blocks and, after all of them, a signal: one operation. Not more than VectorShape::kMost, not none.
  bool try_vector(Flow& flow, const VectorWork& work, const SignalRecord* signal, std::uint64_t& number);
  /// Reads in one slot. As many at most.
  bool try_reads(Flow& flow, const VectorWork& work, Ticket& ticket);

 private:
  using What = Completions::What;

  // submit.cc
  std::pair<Operation*, bool> open_frame(Flow& flow, std::size_t bytes);
  Operation* new_frame(Flow& flow);
  void send(Flow& flow, Operation* frame, bool fresh, bool goes_on = false);

  // bulk.cc
  Operation* queue_operation(Flow& flow, Operation::Kind kind, const Bulk& bulk);
  template <typename Append>
  bool queue_write(Flow& flow, const Bulk& bulk, bool with_frame, Append&& append, std::uint64_t& number);

  // vector.cc
  std::vector<Operation*> take_operations(Flow& flow, std::uint32_t frames, Operation::Kind kind, std::uint32_t others);

  [[gnu::cold]] void note_backpressure() { ++core_.counts.backpressure; }

  Core& core_;
  Completions& completions_;
  Transmitter& transmitter_;
};

/// Frames that one flow may hold, so that one slow peer does not take every structure.
inline constexpr std::uint32_t kMostFramesOfFlow = 1024;

inline Operation* Submissions::new_frame(Flow& flow) {
  const bool may_queue =
      (flow.sender.last() == nullptr || flow.sender.may_queue()) && flow.sender.frames < kMostFramesOfFlow;
  Operation* const frame = may_queue ? core_.pools.take_frame(flow) : nullptr;
  if (frame == nullptr) [[unlikely]]
    note_backpressure();
  return frame;
}

}  // namespace railyard::transport
