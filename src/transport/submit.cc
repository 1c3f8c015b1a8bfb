/// Submission of what travels in a frame. The way of a small operation to the wire, `try_records` and all that it
/// calls, is in this file and in headers.
#include <cstring>

#include "transport/append.hpp"
#include "transport/submissions.hpp"

namespace railyard::transport {

/// The frame that records of so many bytes go into, and whether it is a new one, which nothing has queued; null: no
/// room.
inline std::pair<Operation*, bool> Submissions::open_frame(Flow& flow, std::size_t bytes) {
  Operation* const last = flow.sender.last();
  if (last != nullptr && last->kind == Operation::Kind::frame && last->submission == 0 &&
      !flow.sender.fence_requested() && last->frame->bytes + bytes <= wire::kFrameBytes)
    return {last, false};
  return {new_frame(flow), true};
}

/// The records are in: the frame leaves if it may.
[[gnu::always_inline]] inline void Submissions::send(Flow& flow, Operation* frame, bool fresh, bool goes_on) {
  if (fresh) [[likely]]
    return transmitter_.send(flow, frame, goes_on);
  if (!goes_on) transmitter_.push(flow);
}

bool Submissions::try_records(Flow& flow, const PutRecord* put, const SignalRecord* signal, std::uint64_t& number) {
  std::size_t bytes = 0;
  if (put != nullptr) bytes += wire::record_bytes(put->bytes.size());
  if (signal != nullptr) bytes += wire::record_bytes(sizeof signal->value);
  const auto [frame, fresh] = open_frame(flow, bytes);
  if (frame == nullptr) [[unlikely]]
    return false;
  if (put != nullptr) append_put(*frame, *put);
  if (signal != nullptr) append_signal(*frame, *signal, put != nullptr);
  const What what = put == nullptr ? What::signal : signal == nullptr ? What::put : What::put_signal;
  number = frame->number = completions_.submitted(flow, what, put != nullptr ? put->bytes.size() : 0);
  send(flow, frame, fresh);
  return true;
}

bool Submissions::try_message(Flow& flow, const MessageRecord& message, std::uint64_t& number) {
  const std::size_t bytes = message.body.size() + message.more.size();
  const auto [frame, fresh] = open_frame(flow, wire::record_bytes(bytes));
  if (frame == nullptr) [[unlikely]] {
    transmitter_.push(flow);  // what this would have ended
    return false;
  }
  append_message(*frame, message);
  frame->prompt |= message.ends;
  number = frame->number = completions_.submitted(flow, What::send, bytes);
  send(flow, frame, fresh, message.goes_on);
  return true;
}

bool Submissions::try_atomic(Flow& flow, const AtomicRecord& atomic, void* before, Ticket& ticket) {
  const bool fetch = before != nullptr;
  if (fetch && (flow.sender.fetches >= kMostFetches || !completions_.has_slot())) {
    note_backpressure();
    return false;
  }
  const auto [frame, fresh] = open_frame(flow, wire::record_bytes(sizeof atomic.body));
  if (frame == nullptr) return false;
  wire::AtomicBody wire_body = atomic.body;
  ticket.peer = flow.peer;
  if (fetch) {
    ticket = completions_.submitted_in_slot(flow, {&flow, before, atomic.body.width, true, false, flow.peer},
                                            What::atomic, atomic.body.width);
    wire_body.request = completions_.slots().request(ticket.slot - 1);
    ++flow.sender.fetches;
  } else {
    ticket.number = frame->number = completions_.submitted(flow, What::atomic, atomic.body.width);
  }
  const wire::Atomic record{atomic.exposed_region, atomic.offset,
                            wire::atomic_code(static_cast<std::uint8_t>(atomic.op), atomic.kind)};
  std::byte* body = wire::FrameWriter::append(frame->frame->data, frame->frame->bytes, record.header(sizeof wire_body));
  std::memcpy(body, &wire_body, sizeof wire_body);
  ++frame->records;
  send(flow, frame, fresh);
  return true;
}

}  // namespace railyard::transport
