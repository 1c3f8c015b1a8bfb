/// What `railyard demo` shows: the ranks' results together, as a table, as JSON and as a picture.
#pragma once

#include <string>

#include "demo_traffic.hpp"
#include "railyard/bootstrap.hpp"

namespace railyard::tool {

/// The results of all ranks as one.
struct DemoSummary {
  int ranks = 0;
  DemoResult all;
  bool started_by_others = false;  ///< as ranks of a world, which may span hosts

  double phase_rate(const DemoPhase& phase) const {
    return phase.seconds > 0 ? static_cast<double>(phase.bytes) / phase.seconds : 0;
  }
  /// Bytes per second of one rail in the all-to-all.
  double rail_rate(const DemoRail& rail) const {
    return all.bulk_seconds > 0 ? static_cast<double>(rail.bulk_bytes) / all.bulk_seconds : 0;
  }
};

/// Collective: every rank gets the summary.
Result<DemoSummary> summarise(const DemoResult& mine, Bootstrap& bootstrap);

std::string demo_table(const DemoSummary& summary, bool unicode);
std::string demo_json(const DemoSummary& summary);
std::string demo_picture(const DemoSummary& summary);

}  // namespace railyard::tool
