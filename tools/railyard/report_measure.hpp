/// The measurements of a report: each is what rank 0 of a world of two brings home.
#pragma once

#include <functional>
#include <vector>

#include "bench_match.hpp"
#include "report.hpp"

namespace railyard::tool {

/// What one world found: series of one figure, and what happened meanwhile.
struct ReportFindings {
  std::vector<ReportSeries> series;
  std::vector<ReportMark> marks;
};

using ReportBody = std::function<Result<ReportFindings>(const Settings& settings, Bootstrap& bootstrap)>;

/// Runs `body` as both ranks of a world that it starts; `found` is what rank 0 returned. Returns the exit code.
int measure_in_world(const Settings& settings, bool pin, const ReportBody& body, ReportFindings& found);

/// A bench test over its sizes: one series, then one for each rail of rank 0 if `by_rail`.
ReportBody bench_body(const BenchOptions& options, bool by_rail);
/// Latencies of the demo's operations by quantile.
ReportBody percentiles_body(double seconds);
/// A stream of puts over several rails, of which one is cut for a while: MB/s complete at the target, and of each rail.
ReportBody failover_body(double seconds);

}  // namespace railyard::tool
