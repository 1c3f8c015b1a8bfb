/// Submission of what travels as chunks: writes, reads and atomics of NICs.
#include "transport/append.hpp"
#include "transport/submissions.hpp"

namespace railyard::transport {

/// Every caller pushes it.
Operation* Submissions::queue_operation(Flow& flow, Operation::Kind kind, const Bulk& bulk) {
  Operation* const operation = flow.sender.may_queue() ? core_.pools.take_operation(flow, kind) : nullptr;
  if (operation == nullptr) {
    note_backpressure();
    return nullptr;
  }
  operation->local = bulk.local;
  operation->bytes = bulk.bytes;
  operation->remote_offset = bulk.remote_offset;
  operation->remote = bulk.remote;
  operation->region = bulk.region;
  operation->keep = bulk.keep;
  operation->counter = bulk.counter;
  operation->counter_value = bulk.counter_value;
  flow.sender.enqueue(operation);
  core_.waiting.nudge();  // a rail may need many polls for it, and nobody knows who comes to make them
  return operation;
}

/// Both parts or neither: where the frame that follows cannot be had, the write has not started and is taken back.
template <typename Append>
bool Submissions::queue_write(Flow& flow, const Bulk& bulk, bool with_frame, Append&& append, std::uint64_t& number) {
  Operation* write = queue_operation(flow, Operation::Kind::write, bulk);
  if (write == nullptr) return false;
  Operation* last = write;
  if (with_frame) {
    last = new_frame(flow);
    if (last == nullptr) {
      flow.sender.withdraw_last();
      core_.pools.give_operation(write);
      return false;
    }
    flow.sender.enqueue(last);
    append(*last);
    write->companion = last;
  }
  const What what = !with_frame ? What::put : flow.inbox != nullptr ? What::send : What::put_signal;
  number = last->number = write->submission = completions_.submitted(flow, what, bulk.bytes);
  transmitter_.push(flow);
  return true;
}

bool Submissions::try_write(Flow& flow, const Bulk& bulk, const SignalRecord* signal, std::uint64_t& number) {
  return queue_write(
      flow, bulk, signal != nullptr, [&](Operation& frame) { append_signal(frame, *signal, false); }, number);
}

bool Submissions::try_write(Flow& flow, const Bulk& bulk, const MessageRecord& message, std::uint64_t& number) {
  return queue_write(
      flow, bulk, true, [&](Operation& frame) { append_message(frame, message); }, number);
}

bool Submissions::try_native(Flow& flow, const Bulk& at, const fabric::AtomicRequest& request, void* before,
                             Ticket& ticket) {
  memory::Buffer* const result = completions_.has_slot() ? core_.pools.take_buffer() : nullptr;
  Operation* const operation = result != nullptr ? queue_operation(flow, Operation::Kind::atomic, at) : nullptr;
  if (operation == nullptr) {
    if (result != nullptr) core_.pools.give_buffer(result);
    note_backpressure();
    return false;
  }
  operation->frame = result;
  operation->request = request;
  ticket = completions_.submitted_in_slot(flow, {&flow, before, sizeof(std::uint64_t), false, false, flow.peer},
                                          What::atomic, at.bytes);
  operation->slot = ticket.slot;
  transmitter_.push(flow);
  return true;
}

bool Submissions::try_unordered(Flow& flow, const Bulk& bulk, Operation::Kind kind, Ticket& ticket) {
  if (!completions_.has_slot()) {
    note_backpressure();
    return false;
  }
  Operation* operation = queue_operation(flow, kind, bulk);
  if (operation == nullptr) return false;
  ticket = completions_.submitted_in_slot(flow, {&flow, nullptr, 0, false, false, flow.peer},
                                          kind == Operation::Kind::read ? What::get : What::put, bulk.bytes);
  operation->slot = ticket.slot;
  transmitter_.push(flow);
  return true;
}

}  // namespace railyard::transport
