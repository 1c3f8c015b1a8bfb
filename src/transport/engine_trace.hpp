/// EngineTrace: what an engine does, recorded for `railyard trace`. While nothing is traced, each of its inline calls
/// is one test.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.hpp"
#include "fabric/rail.hpp"
#include "telemetry/trace.hpp"

namespace railyard::transport {

struct Flow;
struct Route;
struct Segment;
class Link;

class EngineTrace {
 public:
  using Kind = telemetry::TraceKind;
  using What = telemetry::TraceOperation;

  /// Before the engine is used; null traces nothing.
  void begin(std::shared_ptr<telemetry::Trace> trace, const std::string& context, std::span<fabric::Rail* const> rails,
             const Clock& clock);
  bool on() const { return trace_ != nullptr; }

  // ---- With the progress lock held ----

  /// Asked for when the sampler is due, which it always is while there is a trace.
  void submitted(const Flow& flow, std::uint64_t number, What what, std::uint64_t bytes, std::uint64_t submitter) const;
  void slot_taken(const Flow& flow, std::uint64_t number, What what, std::uint64_t bytes,
                  std::uint64_t submitter) const;
  void completed(const Flow& flow, std::uint64_t number) const {
    if (on()) [[unlikely]]
      note_completed(flow, number);
  }
  void slot_ended(std::uint64_t number, std::uint8_t cause) const {
    if (on()) [[unlikely]]
      note_slot_ended(number, cause);
  }
  void posted(const Flow& flow, const Segment& segment, const Link& link) const {
    if (on()) [[unlikely]]
      note_posted(flow, segment, link);
  }
  void left(const Segment& segment, const Link& link, bool delivered) const {
    if (on()) [[unlikely]]
      note_left(segment, link, delivered);
  }
  void flow_ended(const Flow& flow) const;
  /// What happens rarely.
  struct Event {
    Kind kind{};
    int peer = -1;
    std::uint16_t rail = telemetry::kNoTraceRail;
    std::uint8_t detail = 0;
    std::uint32_t sequence = 0;
    std::uint64_t bytes = 0;
    std::uint64_t more = 0;
  };
  void event(const Event& event) const;

  // ---- Any thread ----

  /// A send or receive of a channel, which began at `time`; `id` names it until it ends.
  void message_begun(const Flow* flow, What what, const void* id, std::uint64_t bytes, std::int64_t time) const;
  void message_ended(const void* id, std::uint64_t bytes, bool failed) const;
  /// An operation that its call did by itself.
  void direct(int peer, What what, std::uint64_t bytes, std::int64_t began, std::uint64_t submitter) const;
  std::int64_t now() const { return clock_->now(); }

 private:
  [[gnu::cold]] void note_completed(const Flow& flow, std::uint64_t number) const;
  [[gnu::cold]] void note_slot_ended(std::uint64_t number, std::uint8_t cause) const;
  [[gnu::cold]] void note_posted(const Flow& flow, const Segment& segment, const Link& link) const;
  [[gnu::cold]] void note_left(const Segment& segment, const Link& link, bool delivered) const;
  telemetry::TraceRecord begin_record(Kind kind) const;

  std::shared_ptr<telemetry::Trace> trace_;
  const Clock* clock_ = nullptr;
  std::uint16_t context_ = 0;
};

}  // namespace railyard::transport
