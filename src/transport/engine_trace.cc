#include "transport/engine_trace.hpp"

#include "transport/flow.hpp"
#include "transport/operation.hpp"

namespace railyard::transport {
namespace {

std::uint64_t name_of(const void* thing) { return reinterpret_cast<std::uintptr_t>(thing); }

telemetry::TraceSegment kind_of(const Segment& segment) {
  if (segment.voided) return telemetry::TraceSegment::frame;
  switch (segment.operation->kind) {
    case Operation::Kind::frame:
      return telemetry::TraceSegment::frame;
    case Operation::Kind::write:
      return telemetry::TraceSegment::write;
    case Operation::Kind::relaxed_write:
      return telemetry::TraceSegment::relaxed_write;
    case Operation::Kind::read:
      return telemetry::TraceSegment::read;
    case Operation::Kind::atomic:
      return telemetry::TraceSegment::atomic;
  }
  return telemetry::TraceSegment::frame;
}

}  // namespace

void EngineTrace::begin(std::shared_ptr<telemetry::Trace> trace, const std::string& context,
                        std::span<fabric::Rail* const> rails, const Clock& clock) {
  clock_ = &clock;
  trace_ = std::move(trace);
  if (trace_ == nullptr) return;
  context_ = trace_->add_context(context);
  for (std::size_t i = 0; i < rails.size(); ++i)
    trace_->name_rail(context_, static_cast<std::uint16_t>(i), rails[i]->name());
}

telemetry::TraceRecord EngineTrace::begin_record(Kind kind) const {
  telemetry::TraceRecord made;
  made.time = clock_->now();
  made.kind = kind;
  made.context = context_;
  made.rail = telemetry::kNoTraceRail;
  return made;
}

/// The operations of a channel's flow are its protocol: its sends and receives are shown instead.
void EngineTrace::submitted(const Flow& flow, std::uint64_t number, What what, std::uint64_t bytes,
                            std::uint64_t submitter) const {
  if (!on() || flow.inbox != nullptr) return;
  auto made = begin_record(Kind::submitted);
  made.detail = static_cast<std::uint8_t>(what);
  made.flow = flow.id;
  made.peer = flow.peer;
  made.id = number;
  made.bytes = bytes;
  made.submitter = submitter;
  trace_->record(made);
}

void EngineTrace::slot_taken(const Flow& flow, std::uint64_t number, What what, std::uint64_t bytes,
                             std::uint64_t submitter) const {
  if (!on()) return;
  auto made = begin_record(Kind::slot_taken);
  made.detail = static_cast<std::uint8_t>(what);
  made.flow = flow.id;
  made.peer = flow.peer;
  made.id = number;
  made.bytes = bytes;
  made.submitter = submitter;
  trace_->record(made);
}

void EngineTrace::note_completed(const Flow& flow, std::uint64_t number) const {
  if (flow.inbox != nullptr) return;
  auto made = begin_record(Kind::completed);
  made.flow = flow.id;
  made.peer = flow.peer;
  made.id = number;
  trace_->record(made);
}

void EngineTrace::note_slot_ended(std::uint64_t number, std::uint8_t cause) const {
  auto made = begin_record(Kind::slot_ended);
  made.detail = cause;
  made.id = number;
  trace_->record(made);
}

void EngineTrace::note_posted(const Flow& flow, const Segment& segment, const Link& link) const {
  const Operation& operation = *segment.operation;
  auto made = begin_record(Kind::posted);
  made.detail = static_cast<std::uint8_t>(kind_of(segment));
  made.rail = link.rail();
  made.flow = flow.id;
  made.peer = flow.peer;
  made.sequence = segment.sequence;
  made.id = name_of(&segment);
  made.bytes = segment.bytes;
  made.more = operation.number != 0 ? operation.number : operation.submission;
  trace_->record(made);
}

void EngineTrace::note_left(const Segment& segment, const Link& link, bool delivered) const {
  auto made = begin_record(Kind::left);
  made.detail = delivered ? 1 : 0;
  made.rail = link.rail();
  made.id = name_of(&segment);
  made.bytes = segment.bytes;
  trace_->record(made);
}

void EngineTrace::flow_ended(const Flow& flow) const {
  if (!on()) return;
  auto made = begin_record(Kind::flow_ended);
  made.flow = flow.id;
  made.peer = flow.peer;
  trace_->record(made);
}

void EngineTrace::event(const Event& event) const {
  if (!on()) return;
  auto made = begin_record(event.kind);
  made.detail = event.detail;
  made.rail = event.rail;
  made.peer = event.peer;
  made.sequence = event.sequence;
  made.bytes = event.bytes;
  made.more = event.more;
  trace_->record(made);
}

void EngineTrace::message_begun(const Flow* flow, What what, const void* id, std::uint64_t bytes,
                                std::int64_t time) const {
  auto made = begin_record(Kind::message_begun);
  made.time = time;
  made.detail = static_cast<std::uint8_t>(what);
  if (flow != nullptr) {
    made.flow = flow->id;
    made.peer = flow->peer;
  }
  made.id = name_of(id);
  made.bytes = bytes;
  trace_->record(made);
}

void EngineTrace::message_ended(const void* id, std::uint64_t bytes, bool failed) const {
  auto made = begin_record(Kind::message_ended);
  made.detail = failed ? 1 : 0;
  made.id = name_of(id);
  made.bytes = bytes;
  trace_->record(made);
}

void EngineTrace::direct(int peer, What what, std::uint64_t bytes, std::int64_t began, std::uint64_t submitter) const {
  auto made = begin_record(Kind::direct);
  made.detail = static_cast<std::uint8_t>(what);
  made.peer = peer;
  made.bytes = bytes;
  made.more = static_cast<std::uint64_t>(made.time - began);
  made.submitter = submitter;
  trace_->record(made);
}

}  // namespace railyard::transport
