/// Reads a trace file of any content, while its owner writes to it or after its end: what makes no sense is an error
/// that says what, or is left out and counted; nothing in the file is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "railyard/result.hpp"
#include "telemetry/trace_layout.hpp"

namespace railyard::telemetry {

struct TraceFile {
  std::uint32_t pid = 0;
  std::uint64_t started = 0;
  std::int64_t opened_wall = 0;
  std::int64_t opened_monotonic = 0;
  std::int32_t rank = -1;
  std::int32_t size = 0;
  std::string host;
  std::string command;
  std::map<std::uint16_t, std::string> contexts;
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::string> rails;  ///< by context and number

  // recorded = records.size() + overwritten + missing
  std::uint64_t recorded = 0;        ///< ever
  std::uint64_t overwritten = 0;     ///< by newer ones, as the ring was full
  std::uint64_t missing = 0;         ///< were being written when the file was read, or when their process was killed
  std::vector<TraceRecord> records;  ///< oldest first
};

/// `head`: what the header's said when the last byte had been copied; entries that were overwritten in that time are
/// not taken.
Result<TraceFile> read_trace(std::span<const std::byte> bytes, std::uint64_t head);
Result<TraceFile> read_trace_file(const std::string& path);

}  // namespace railyard::telemetry
