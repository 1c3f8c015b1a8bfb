#include "telemetry/timeline.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

namespace railyard::telemetry {
namespace {

class Assembly {
 public:
  Timeline run(const TraceFile& file) {
    for (const TraceRecord& record : file.records) {
      last_ = std::max(last_, record.time);
      take(record);
    }
    for (auto* spans : {&timeline_.operations, &timeline_.segments})
      for (Span& span : *spans)
        if (!span.ended) span.end = std::max(span.begin, last_);
    return std::move(timeline_);
  }

 private:
  using FlowName = std::pair<std::uint16_t, std::uint16_t>;  ///< context and number
  /// Operations of a sequence that are under way, by place in `operations`, their numbers growing.
  struct OpenFlow {
    std::deque<std::size_t> open;
    std::uint64_t sent = 0;  ///< operations up to this have a segment
  };

  void take(const TraceRecord& record) {
    switch (record.kind) {
      case TraceKind::submitted:
        return submit(record);
      case TraceKind::completed:
        return complete(flows_[{record.context, record.flow}], record.id, record.time, false);
      case TraceKind::slot_taken:
        slots_.insert_or_assign({record.context, record.id}, begin(timeline_.operations, record));
        return;
      case TraceKind::slot_ended:
        return end(slots_, std::pair(record.context, record.id), timeline_.operations, record, record.detail != 0);
      case TraceKind::direct: {
        Span& span = timeline_.operations[begin(timeline_.operations, record)];
        span.begin =
            record.time - static_cast<std::int64_t>(std::min(record.more, static_cast<std::uint64_t>(record.time)));
        span.ended = span.direct = true;
        return;
      }
      case TraceKind::posted:
        return post(record);
      case TraceKind::left:
        return end(segments_, record.id, timeline_.segments, record, record.detail == 0);
      case TraceKind::flow_ended:
        return end_flow(record);
      case TraceKind::message_begun:
        messages_.insert_or_assign(record.id, begin(timeline_.operations, record));
        return;
      case TraceKind::message_ended: {
        const auto known = messages_.find(record.id);
        if (known != messages_.end() && record.detail == 0) timeline_.operations[known->second].bytes = record.bytes;
        return end(messages_, record.id, timeline_.operations, record, record.detail != 0);
      }
      default:
        timeline_.events.push_back(record);
    }
  }

  static std::size_t begin(std::vector<Span>& spans, const TraceRecord& record) {
    Span span;
    span.begin = span.end = record.time;
    span.what = record.detail;
    span.context = record.context;
    span.rail = record.rail;
    span.flow = record.flow;
    span.peer = record.peer;
    span.number = record.id;
    span.bytes = record.bytes;
    span.submitter = record.submitter;
    spans.push_back(span);
    return spans.size() - 1;
  }

  template <typename Open, typename Name>
  void end(Open& open, const Name& name, std::vector<Span>& spans, const TraceRecord& record, bool failed) {
    const auto known = open.find(name);
    if (known == open.end()) {
      ++timeline_.headless;
      return;
    }
    finish(spans[known->second], record.time, failed);
    open.erase(known);
  }

  static void finish(Span& span, std::int64_t time, bool failed) {
    span.end = std::max(span.begin, time);
    span.ended = true;
    span.failed = failed;
  }

  void submit(const TraceRecord& record) {
    OpenFlow& flow = flows_[{record.context, record.flow}];
    // A flow of that number that was there before: its end is not in the trace.
    const bool again = !flow.open.empty() && timeline_.operations[flow.open.back()].number >= record.id;
    if (again || record.id <= flow.sent) flow = {};
    flow.open.push_back(begin(timeline_.operations, record));
  }

  void complete(OpenFlow& flow, std::uint64_t number, std::int64_t time, bool failed) {
    if (flow.open.empty() && !failed) ++timeline_.headless;
    while (!flow.open.empty() && timeline_.operations[flow.open.front()].number <= number) {
      finish(timeline_.operations[flow.open.front()], time, failed);
      flow.open.pop_front();
    }
  }

  void post(const TraceRecord& record) {
    const std::size_t at = begin(timeline_.segments, record);
    Span& segment = timeline_.segments[at];
    segment.number = record.more;
    segments_.insert_or_assign(record.id, at);
    const auto what = static_cast<TraceSegment>(record.detail);
    if (what != TraceSegment::frame && what != TraceSegment::write) return;
    segment.sequence = record.sequence;
    const auto known = flows_.find({record.context, record.flow});
    if (known == flows_.end() || record.more <= known->second.sent) return;
    OpenFlow& flow = known->second;
    // Those that it is the first segment of.
    auto next = std::upper_bound(
        flow.open.begin(), flow.open.end(), flow.sent,
        [this](std::uint64_t sent, std::size_t each) { return sent < timeline_.operations[each].number; });
    for (; next != flow.open.end() && timeline_.operations[*next].number <= record.more; ++next)
      timeline_.operations[*next].sequence = record.sequence;
    flow.sent = record.more;
  }

  void end_flow(const TraceRecord& record) {
    const auto known = flows_.find({record.context, record.flow});
    if (known != flows_.end()) {
      complete(known->second, std::numeric_limits<std::uint64_t>::max(), record.time, true);
      flows_.erase(known);
    }
    std::erase_if(slots_, [&](const auto& slot) {
      Span& span = timeline_.operations[slot.second];
      if (slot.first.first != record.context || span.flow != record.flow) return false;
      finish(span, record.time, true);
      return true;
    });
  }

  Timeline timeline_;
  std::int64_t last_ = std::numeric_limits<std::int64_t>::min();
  std::map<FlowName, OpenFlow> flows_;
  std::map<std::pair<std::uint16_t, std::uint64_t>, std::size_t> slots_;  ///< by context and number
  std::unordered_map<std::uint64_t, std::size_t> segments_;
  std::unordered_map<std::uint64_t, std::size_t> messages_;
};

}  // namespace

Timeline assemble(const TraceFile& file) { return Assembly().run(file); }

}  // namespace railyard::telemetry
