/// Submitter: whose operations an engine is given, where several users share it: a window. Its operations are counted
/// by kind and, where telemetry is on, some are timed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "telemetry/trace_layout.hpp"

namespace railyard::transport {

struct Submitter {
  using What = telemetry::TraceOperation;
  struct Count {
    std::uint64_t operations = 0;
    std::uint64_t bytes = 0;
  };
  Count& of(What what) { return counts[static_cast<std::size_t>(what)]; }
  const Count& of(What what) const { return counts[static_cast<std::size_t>(what)]; }

  std::uint64_t number = 0;     ///< what traces call it: a window's number plus one; 0: it has none
  std::array<Count, 7> counts;  ///< by What. Written with the progress lock held
  /// Histograms with the buckets of `Octaves`, by LatencySampler::Kind; null: nothing is published.
  std::array<std::atomic<std::uint64_t>*, 3> latency{};
};

}  // namespace railyard::transport
