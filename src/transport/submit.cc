/// Submission: turns a caller's operation into queued work. Nothing here waits; no room means "not now".
#include <cstring>

#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

/// Frames that one flow may hold, so that one slow peer does not take every structure.
constexpr std::uint32_t kMostFramesOfFlow = 1024;

using Sampled = LatencySampler::Kind;

}  // namespace

[[gnu::hot]] void Engine::count_outstanding(Flow& flow, std::int64_t change) {
  // The progress lock's holder is the only writer: plain loads and stores, no locked instruction. Release: whoever
  // reads "nothing outstanding" sees everything those operations did.
  const auto delta = static_cast<std::uint64_t>(change);
  flow.outstanding.store(flow.outstanding.load(std::memory_order_relaxed) + delta, std::memory_order_release);
  outstanding_.store(outstanding_.load(std::memory_order_relaxed) + delta, std::memory_order_release);
}

[[gnu::hot]] std::uint64_t Engine::count_submission(Flow& flow, What what, std::uint64_t bytes) {
  count_outstanding(flow, 1);
  const std::uint64_t number = ++flow.submitted;
  count_for_submitter(what, bytes);
  if (sampler_.due()) [[unlikely]]
    note_submission(flow, number, what, bytes);
  return number;
}

void Engine::note_submission(const Flow& flow, std::uint64_t number, What what, std::uint64_t bytes) {
  const Sampled sampled = flow.inbox != nullptr  ? Sampled::message
                          : what == What::atomic ? Sampled::atomic
                                                 : Sampled::put;
  sampler_.submitted(flow, number, sampled, *submitter_);
  trace_.submitted(flow, number, what, bytes, submitter_->number);
}

void Engine::count_slot(Flow& flow, std::uint32_t slot, What what, std::uint64_t bytes) {
  count_for_submitter(what, bytes);
  if (sampler_.due()) [[unlikely]]
    note_slot(flow, slot, what, bytes);
}

void Engine::note_slot(const Flow& flow, std::uint32_t slot, What what, std::uint64_t bytes) {
  const Sampled sampled = what == What::get ? Sampled::get : what == What::atomic ? Sampled::atomic : Sampled::put;
  sampler_.took(slot, &slots_, sampled, *submitter_);
  trace_.slot_taken(flow, slots_.number(slot), what, bytes, submitter_->number);
}

[[gnu::hot]] void Engine::activate(Flow& flow) {
  if (begin_watch(*flow.route)) nudge_due_ = true;
  scheduler_.add(flow);
}

[[gnu::hot]] void Engine::push(Flow& flow) {
  if (!flow.route->watched && flow.sender.has_queued()) [[unlikely]]
    nudge_due_ |= begin_watch(*flow.route);
  transmit_flow(flow, settings_.batch);
  ring();
  if (flow.sender.has_queued()) [[unlikely]] {
    scheduler_.add(flow);
    // Nobody knows whether the caller comes again, to send the rest or to look after the links.
    waiting_.nudge();
  }
  if (std::exchange(nudge_due_, false)) [[unlikely]]
    waiting_.nudge_later();
}

[[gnu::hot]] Operation* Engine::queue_operation(Flow& flow, Operation::Kind kind) {
  Operation* operation = flow.sender.may_queue() ? operations_.take() : nullptr;
  if (operation == nullptr) {
    note_backpressure();
    return nullptr;
  }
  operation->flow = &flow;
  operation->kind = kind;
  flow.sender.enqueue(operation);  // every caller pushes it
  return operation;
}

[[gnu::hot]] Operation* Engine::open_frame(Flow& flow, std::size_t bytes) {
  Operation* tail = flow.sender.last();
  if (tail != nullptr && tail->kind == Operation::Kind::frame && tail->submission == 0 &&
      !flow.sender.fence_requested() && tail->frame->bytes + bytes <= wire::kFrameBytes) {
    return tail;
  }
  return queue_frame(flow);
}

[[gnu::hot]] Operation* Engine::queue_frame(Flow& flow) {
  memory::Buffer* buffer =
      flow.sender.may_queue() && flow.sender.frames < kMostFramesOfFlow ? frames_->take() : nullptr;
  if (buffer == nullptr) {
    note_backpressure();
    return nullptr;
  }
  Operation* frame = queue_operation(flow, Operation::Kind::frame);
  if (frame == nullptr) {
    frames_->give(buffer);
    return nullptr;
  }
  buffer->bytes = wire::kRecordsAt;
  frame->frame = buffer;
  ++flow.sender.frames;
  return frame;
}

[[gnu::hot]] void Engine::append_put(Operation& frame, const PutRecord& put, bool joined) {
  const auto kind = joined ? wire::joined(wire::RecordKind::put) : wire::RecordKind::put;
  std::byte* body = wire::FrameWriter::append(
      frame.frame->data, frame.frame->bytes,
      {kind, 0, static_cast<std::uint16_t>(put.bytes.size()), put.exposed_region, put.offset});
  std::memcpy(body, put.bytes.data(), put.bytes.size());
  ++frame.records;
}

[[gnu::hot]] void Engine::append_signal(Operation& frame, const SignalRecord& signal, bool joined) {
  const auto kind = joined ? wire::joined(wire::RecordKind::signal) : wire::RecordKind::signal;
  std::byte* body = wire::FrameWriter::append(
      frame.frame->data, frame.frame->bytes,
      {kind, static_cast<std::uint8_t>(signal.op), sizeof signal.value, signal.exposed_region, signal.index});
  std::memcpy(body, &signal.value, sizeof signal.value);
  ++frame.records;
}

[[gnu::hot]] bool Engine::try_records(Flow& flow, const PutRecord* put, const SignalRecord* signal,
                                      std::uint64_t& number) {
  std::size_t bytes = 0;
  if (put != nullptr) bytes += wire::record_bytes(put->bytes.size());
  if (signal != nullptr) bytes += wire::record_bytes(sizeof signal->value);
  Operation* frame = open_frame(flow, bytes);
  if (frame == nullptr) return false;
  if (put != nullptr) append_put(*frame, *put);
  if (signal != nullptr) append_signal(*frame, *signal, put != nullptr);
  const What what = put == nullptr ? What::signal : signal == nullptr ? What::put : What::put_signal;
  number = frame->number = count_submission(flow, what, put != nullptr ? put->bytes.size() : 0);
  push(flow);
  return true;
}

void Engine::append_message(Operation& frame, const MessageRecord& message) {
  const std::size_t bytes = message.body.size() + message.more.size();
  std::byte* body = wire::FrameWriter::append(
      frame.frame->data, frame.frame->bytes,
      {wire::RecordKind::message, message.detail, static_cast<std::uint16_t>(bytes), message.number, message.offset});
  if (!message.body.empty()) std::memcpy(body, message.body.data(), message.body.size());
  if (!message.more.empty()) std::memcpy(body + message.body.size(), message.more.data(), message.more.size());
  ++frame.records;
}

bool Engine::try_message(Flow& flow, const MessageRecord& message, std::uint64_t& number) {
  Operation* frame = open_frame(flow, wire::record_bytes(message.body.size() + message.more.size()));
  if (frame == nullptr) return false;
  append_message(*frame, message);
  number = frame->number = count_submission(flow, What::send, message.body.size() + message.more.size());
  push(flow);
  return true;
}

bool Engine::try_atomic(Flow& flow, const AtomicRecord& atomic, void* before, Ticket& ticket) {
  const bool fetch = before != nullptr;
  if (fetch && (flow.sender.fetches >= kMostFetches || slots_.empty())) {
    note_backpressure();
    return false;
  }
  Operation* frame = open_frame(flow, wire::record_bytes(sizeof atomic.body));
  if (frame == nullptr) return false;
  wire::AtomicBody wire_body = atomic.body;
  ticket.peer = flow.peer;
  if (fetch) {
    const std::uint32_t slot = slots_.take({&flow, before, atomic.body.width, true, false, flow.peer});
    count_slot(flow, slot, What::atomic, atomic.body.width);
    wire_body.request = slots_.request(slot);
    ticket.slot = slot + 1;
    ticket.number = slots_.number(slot);
    ++flow.sender.fetches;
    count_outstanding(flow, 1);
  } else {
    ticket.number = frame->number = count_submission(flow, What::atomic, atomic.body.width);
  }
  std::byte* body = wire::FrameWriter::append(
      frame->frame->data, frame->frame->bytes,
      {wire::RecordKind::atomic, wire::atomic_code(static_cast<std::uint8_t>(atomic.op), atomic.kind), sizeof wire_body,
       atomic.exposed_region, atomic.offset});
  std::memcpy(body, &wire_body, sizeof wire_body);
  ++frame->records;
  push(flow);
  return true;
}

Operation* Engine::queue_bulk(Flow& flow, Operation::Kind kind, const Bulk& bulk) {
  Operation* operation = queue_operation(flow, kind);
  if (operation == nullptr) return nullptr;
  operation->local = bulk.local;
  operation->bytes = bulk.bytes;
  operation->remote_offset = bulk.remote_offset;
  operation->remote = bulk.remote;
  operation->region = bulk.region;
  operation->keep = bulk.keep;
  operation->counter = bulk.counter;
  operation->counter_value = bulk.counter_value;
  waiting_.nudge();  // a rail may need many polls for it, and nobody knows who comes to make them
  return operation;
}

/// Both parts or neither: where the frame that follows cannot be queued, the write has not started and is taken back.
template <typename Append>
bool Engine::queue_write(Flow& flow, const Bulk& bulk, bool with_frame, Append&& append, std::uint64_t& number) {
  Operation* write = queue_bulk(flow, Operation::Kind::write, bulk);
  if (write == nullptr) return false;
  Operation* last = write;
  if (with_frame) {
    last = queue_frame(flow);
    if (last == nullptr) {
      flow.sender.withdraw_last();
      operations_.give(write);
      return false;
    }
    append(*last);
    write->companion = last;
  }
  const What what = !with_frame ? What::put : flow.inbox != nullptr ? What::send : What::put_signal;
  number = last->number = write->submission = count_submission(flow, what, bulk.bytes);
  push(flow);
  return true;
}

bool Engine::try_write(Flow& flow, const Bulk& bulk, const SignalRecord* signal, std::uint64_t& number) {
  return queue_write(
      flow, bulk, signal != nullptr, [&](Operation& frame) { append_signal(frame, *signal, false); }, number);
}

bool Engine::try_write(Flow& flow, const Bulk& bulk, const MessageRecord& message, std::uint64_t& number) {
  return queue_write(
      flow, bulk, true, [&](Operation& frame) { append_message(frame, message); }, number);
}

bool Engine::try_native(Flow& flow, const Bulk& at, const fabric::AtomicRequest& request, void* before,
                        Ticket& ticket) {
  memory::Buffer* const result = slots_.empty() ? nullptr : frames_->take();
  Operation* const operation = result != nullptr ? queue_bulk(flow, Operation::Kind::atomic, at) : nullptr;
  if (operation == nullptr) {
    if (result != nullptr) frames_->give(result);
    note_backpressure();
    return false;
  }
  operation->frame = result;
  ++flow.sender.frames;
  operation->request = request;
  const std::uint32_t slot = slots_.take({&flow, before, sizeof(std::uint64_t), false, false, flow.peer});
  count_slot(flow, slot, What::atomic, at.bytes);
  operation->slot = slot + 1;
  ticket = {slots_.number(slot), flow.peer, slot + 1};
  count_outstanding(flow, 1);
  push(flow);
  return true;
}

bool Engine::try_unordered(Flow& flow, const Bulk& bulk, Operation::Kind kind, Ticket& ticket) {
  if (slots_.empty()) {
    note_backpressure();
    return false;
  }
  Operation* operation = queue_bulk(flow, kind, bulk);
  if (operation == nullptr) return false;
  const std::uint32_t slot = slots_.take({&flow, nullptr, 0, false, false, flow.peer});
  count_slot(flow, slot, kind == Operation::Kind::read ? What::get : What::put, bulk.bytes);
  operation->slot = slot + 1;
  ticket = {slots_.number(slot), flow.peer, slot + 1};
  count_outstanding(flow, 1);
  push(flow);
  return true;
}

}  // namespace railyard::transport
