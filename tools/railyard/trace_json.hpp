/// Traces of processes as one text in the trace event format, which Perfetto and chrome://tracing show.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "telemetry/timeline.hpp"
#include "telemetry/trace_reader.hpp"

namespace railyard::tool {

/// One process of the run.
struct TracedProcess {
  std::string path;
  bool alive = false;
  telemetry::TraceFile file;
  telemetry::Timeline timeline;
};

/// Takes the text, part after part. False: it cannot; nothing more is given to it.
using TraceSink = std::function<bool(std::string_view)>;

/// All processes on one time line. Those of one host share a clock, CLOCK_MONOTONIC; those of other hosts are placed by
/// their wall clocks, as well as these agree. Returns false as soon as the sink does.
bool write_trace(const std::vector<TracedProcess>& processes, const TraceSink& sink);

/// What is in it and what is not.
std::string trace_summary_json(const std::vector<TracedProcess>& processes);
std::string process_label(const TracedProcess& process);

}  // namespace railyard::tool
