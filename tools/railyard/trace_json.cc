#include "trace_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "json.hpp"
#include "transport/failures.hpp"
#include "transport/link.hpp"

namespace railyard::tool {
namespace {

using telemetry::Span;
using telemetry::TraceKind;
using telemetry::TraceRecord;

constexpr std::size_t kPart = 1U << 20U;  ///< bytes given to the sink at a time
constexpr int kEventsTrack = 1;           ///< the thread that events are shown as

/// Times of a file may be anything: what makes no sense wraps around.
std::int64_t difference(std::int64_t one, std::int64_t other) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(one) - static_cast<std::uint64_t>(other));
}

/// Collects events and gives them on in parts.
class EventWriter {
 public:
  explicit EventWriter(const TraceSink& sink) : sink_(sink) {}

  void add(std::string_view event) {
    text_ += first_ ? "\n" : ",\n";
    first_ = false;
    text_ += event;
    if (text_.size() >= kPart) flush();
  }
  void raw(std::string_view text) { text_ += text; }
  void flush() {
    if (good_) good_ = sink_(text_);
    text_.clear();
  }
  bool good() const { return good_; }

 private:
  const TraceSink& sink_;
  std::string text_;
  bool first_ = true;
  bool good_ = true;
};

/// One process's events.
class ProcessWriter {
 public:
  ProcessWriter(EventWriter& out, const TracedProcess& process, std::int64_t origin, std::uint64_t& next_id)
      : out_(out), process_(process), origin_(origin), next_id_(next_id) {}

  void write(int order) {
    const auto pid = process_.file.pid;
    out_.add(fmt::format(R"({{"ph":"M","pid":{},"tid":0,"name":"process_name","args":{{"name":{}}}}})", pid,
                         json_quoted(process_label(process_))));
    out_.add(fmt::format(R"({{"ph":"M","pid":{},"tid":0,"name":"process_sort_index","args":{{"sort_index":{}}}}})", pid,
                         process_.file.rank >= 0 ? process_.file.rank : order));
    out_.add(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"events"}}}})", pid,
                         kEventsTrack));
    for (const auto& [context, name] : process_.file.contexts)
      out_.add(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})", pid,
                           context + 2, json_quoted(name)));
    for (const Span& span : process_.timeline.operations) operation(span);
    for (const Span& span : process_.timeline.segments) segment(span);
    in_flight();
    for (const TraceRecord& record : process_.timeline.events) event(record);
  }

 private:
  /// Microseconds, as the format wants them.
  std::string time(std::int64_t nanoseconds) const {
    return fmt::format("{:.3f}", static_cast<double>(difference(nanoseconds, origin_)) * 1e-3);
  }
  std::string rail_name(std::uint16_t context, std::uint16_t rail) const {
    const auto found = process_.file.rails.find({context, rail});
    return found == process_.file.rails.end() ? fmt::format("rail {}", rail)
                                              : fmt::format("rail {} ({})", rail, found->second);
  }
  std::string context_name(std::uint16_t context) const {
    const auto found = process_.file.contexts.find(context);
    return found == process_.file.contexts.end() ? fmt::format("context {}", context) : found->second;
  }

  void pair(const char* category, const std::string& name, const Span& span, const std::string& arguments) {
    const std::uint64_t id = next_id_++;
    const auto half = [&](char phase, std::int64_t at, const std::string& with) {
      out_.add(
          fmt::format(R"({{"ph":"{}","cat":"{}","id":"0x{:x}","name":{},"pid":{},"tid":{},"ts":{},"args":{{{}}}}})",
                      phase, category, id, json_quoted(name), process_.file.pid, span.context + 2, time(at), with));
    };
    half('b', span.begin, arguments);
    std::string how = span.failed ? R"("failed":true)" : "";
    if (!span.ended) how = R"("unfinished":true)";
    half('e', span.end, how);
  }

  void operation(const Span& span) {
    std::string arguments = fmt::format(R"("context":{},"peer":{},"bytes":{})", json_quoted(context_name(span.context)),
                                        span.peer, span.bytes);
    if (span.submitter != 0) arguments += fmt::format(R"(,"window":{})", span.submitter - 1);
    if (span.direct) {
      arguments += R"(,"direct":true)";
    } else if (span.what < static_cast<std::uint8_t>(telemetry::TraceOperation::send)) {
      arguments += fmt::format(R"(,"number":{})", span.number);
    }
    if (span.sequence) arguments += fmt::format(R"(,"sequence":{})", *span.sequence);
    pair("operation", telemetry::to_string(static_cast<telemetry::TraceOperation>(span.what)), span, arguments);
  }

  void segment(const Span& span) {
    std::string arguments = fmt::format(R"("rail":{},"peer":{},"bytes":{})",
                                        json_quoted(rail_name(span.context, span.rail)), span.peer, span.bytes);
    if (span.sequence) arguments += fmt::format(R"(,"sequence":{})", *span.sequence);
    if (span.number != 0) arguments += fmt::format(R"(,"number":{})", span.number);
    pair("segment",
         fmt::format("rail {}: {}", span.rail, telemetry::to_string(static_cast<telemetry::TraceSegment>(span.what))),
         span, arguments);
  }

  /// A curve for each rail: what it holds at each moment.
  void in_flight() {
    struct Step {
      std::int64_t at;
      std::int64_t change;
    };
    std::map<std::pair<std::uint16_t, std::uint16_t>, std::vector<Step>> rails;
    for (const Span& span : process_.timeline.segments) {
      auto& steps = rails[{span.context, span.rail}];
      const auto bytes = static_cast<std::int64_t>(std::min<std::uint64_t>(span.bytes, UINT32_MAX));
      steps.push_back({span.begin, bytes});
      if (span.ended) steps.push_back({span.end, -bytes});
    }
    for (auto& [rail, steps] : rails) {
      std::ranges::stable_sort(steps, {}, &Step::at);
      const std::string name = json_quoted(rail_name(rail.first, rail.second) + ": bytes in flight");
      std::int64_t held = 0;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        held += steps[i].change;
        if (i + 1 < steps.size() && steps[i + 1].at == steps[i].at) continue;
        out_.add(fmt::format(R"({{"ph":"C","name":{},"pid":{},"ts":{},"args":{{"bytes":{}}}}})", name,
                             process_.file.pid, time(steps[i].at), held));
      }
    }
  }

  void event(const TraceRecord& record) {
    std::string arguments = fmt::format(R"("context":{})", json_quoted(context_name(record.context)));
    if (record.peer >= 0) arguments += fmt::format(R"(,"peer":{})", record.peer);
    if (record.rail != telemetry::kNoTraceRail)
      arguments += fmt::format(R"(,"rail":{})", json_quoted(rail_name(record.context, record.rail)));
    switch (record.kind) {
      case TraceKind::link_down:
        arguments +=
            fmt::format(R"(,"cause":{},"segments_to_move":{})",
                        json_quoted(to_string(static_cast<transport::LossCause>(record.detail))), record.bytes);
        break;
      case TraceKind::link_up:
        arguments += fmt::format(R"(,"down_seconds":{:.6f})", static_cast<double>(record.more) * 1e-9);
        break;
      case TraceKind::fenced:
        arguments += fmt::format(R"(,"arrived_up_to":{},"segments_to_replay":{})", record.sequence, record.bytes);
        break;
      case TraceKind::fence:
        arguments += fmt::format(R"(,"arrived_up_to":{})", record.sequence);
        break;
      case TraceKind::replay:
        arguments +=
            fmt::format(R"(,"sequence":{},"bytes":{},"attempt":{})", record.sequence, record.bytes, record.detail);
        break;
      case TraceKind::stall:
      case TraceKind::peer_stalled:
        arguments += fmt::format(R"(,"seconds":{:.3f})", static_cast<double>(record.more) * 1e-9);
        break;
      default:
        break;
    }
    out_.add(fmt::format(R"({{"ph":"i","s":"p","cat":"event","name":"{}","pid":{},"tid":{},"ts":{},"args":{{{}}}}})",
                         telemetry::event_name(record.kind), process_.file.pid, kEventsTrack, time(record.time),
                         arguments));
  }

  EventWriter& out_;
  const TracedProcess& process_;
  std::int64_t origin_;
  std::uint64_t& next_id_;
};

/// What to take from the times of a process so that they count as those of the first one's host do.
std::int64_t shift_of(const TracedProcess& first, const TracedProcess& process) {
  if (process.file.host == first.file.host) return 0;
  return difference(difference(first.file.opened_wall, first.file.opened_monotonic),
                    difference(process.file.opened_wall, process.file.opened_monotonic));
}

std::int64_t earliest_of(const TracedProcess& process) {
  std::int64_t earliest = std::numeric_limits<std::int64_t>::max();
  for (const auto* spans : {&process.timeline.operations, &process.timeline.segments})
    for (const Span& span : *spans) earliest = std::min(earliest, span.begin);
  for (const TraceRecord& record : process.timeline.events) earliest = std::min(earliest, record.time);
  return earliest;
}

}  // namespace

std::string process_label(const TracedProcess& process) {
  const auto& file = process.file;
  return file.rank < 0 ? fmt::format("{} ({})", file.command, file.pid)
                       : fmt::format("rank {} of {}: {} ({})", file.rank, file.size, file.command, file.pid);
}

bool write_trace(const std::vector<TracedProcess>& processes, const TraceSink& sink) {
  EventWriter out(sink);
  out.raw("{\"displayTimeUnit\": \"ns\",\n\"otherData\": ");
  std::string about = trace_summary_json(processes);
  out.raw(about);
  out.raw(",\n\"traceEvents\": [");
  std::int64_t origin = std::numeric_limits<std::int64_t>::max();
  for (const TracedProcess& process : processes) {
    const std::int64_t earliest = earliest_of(process);
    if (earliest != std::numeric_limits<std::int64_t>::max())
      origin = std::min(origin, difference(earliest, shift_of(processes.front(), process)));
  }
  std::uint64_t next_id = 1;
  for (std::size_t i = 0; i < processes.size() && out.good(); ++i) {
    const std::int64_t back = difference(0, shift_of(processes.front(), processes[i]));
    ProcessWriter(out, processes[i], difference(origin, back), next_id).write(static_cast<int>(i));
  }
  out.raw("\n]}\n");
  out.flush();
  return out.good();
}

std::string trace_summary_json(const std::vector<TracedProcess>& processes) {
  const bool one_host = std::ranges::all_of(
      processes, [&](const TracedProcess& each) { return each.file.host == processes.front().file.host; });
  JsonWriter json;
  json.begin_object().field("tool", "railyard trace");
  json.field("clock", one_host ? "CLOCK_MONOTONIC, one for all processes"
                               : "CLOCK_MONOTONIC of the first process's host; other hosts by their wall clocks");
  json.key("processes").begin_array();
  for (const TracedProcess& process : processes) {
    const auto& file = process.file;
    json.begin_object().field("pid", file.pid).field("rank", file.rank).field("size", file.size);
    json.field("host", std::string_view(file.host)).field("command", std::string_view(file.command));
    json.field("file", std::string_view(process.path)).field("alive", process.alive);
    json.field("recorded", file.recorded).field("kept", std::uint64_t{file.records.size()});
    json.field("overwritten", file.overwritten).field("missing", file.missing);
    json.field("operations", std::uint64_t{process.timeline.operations.size()});
    json.field("segments", std::uint64_t{process.timeline.segments.size()});
    json.field("events", std::uint64_t{process.timeline.events.size()});
    json.field("ends_without_beginning", process.timeline.headless).end_object();
  }
  json.end_array().end_object();
  return json.finish();
}

}  // namespace railyard::tool
