/// Timeline: the records of a trace put together: operations and segments with their beginning and their end, and what
/// happened to rails, links and peers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "telemetry/trace_reader.hpp"

namespace railyard::telemetry {

struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;  ///< of one that has not ended: the last moment that the trace knows
  bool ended = false;
  bool failed = false;
  std::uint8_t what = 0;  ///< a TraceOperation, or a TraceSegment
  std::uint16_t context = 0;
  std::uint16_t rail = kNoTraceRail;
  std::uint16_t flow = 0;
  std::int32_t peer = -1;
  std::uint64_t number = 0;  ///< of the operation; of a segment: of the operation that it is of
  std::uint64_t bytes = 0;
  std::optional<std::uint32_t> sequence;  ///< the first segment's
  bool direct = false;                    ///< past the engine
  std::uint64_t submitter = 0;            ///< the number of its window plus one; 0: of none
};

struct Timeline {
  std::vector<Span> operations;
  std::vector<Span> segments;
  std::vector<TraceRecord> events;
  std::uint64_t headless = 0;  ///< ends whose beginning is not in the trace
};

Timeline assemble(const TraceFile& file);

}  // namespace railyard::telemetry
