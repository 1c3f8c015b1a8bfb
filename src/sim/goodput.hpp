/// What failing rails cost: a large world of neighbours that exchange verified puts all the time, while rails fail and
/// come back, and what arrives beside what the standing rails could carry.
#pragma once

#include <cstdint>
#include <vector>

#include "railyard/result.hpp"

namespace railyard::sim {

struct GoodputOptions {
  std::uint32_t ranks = 1'024;
  std::uint32_t rails = 4;
  std::uint64_t seed = 1;
  double seconds = 3;     ///< virtual
  double failing = 0.01;  ///< share of the rails that fail in a virtual second
};

/// One step of the curve, bytes per virtual second of all ranks together.
struct GoodputStep {
  double time = 0;       ///< seconds, its end
  double delivered = 0;  ///< seen by the target and found right
  double possible = 0;   ///< line rate of the links whose rails carried at both ends
};

struct Goodput {
  std::vector<GoodputStep> steps;
  double line_rate = 0;  ///< of all links
  std::uint64_t failures = 0;
  std::uint64_t puts = 0;
  std::uint64_t wrong = 0;    ///< puts that were not what they should be when their signal came
  std::uint64_t refused = 0;  ///< operations that the library refused or failed
  std::uint64_t links_lost = 0;
  std::uint64_t replayed = 0;  ///< segments sent again
  double share = 0;            ///< of what was possible, over all steps after the start
  double worst = 0;            ///< in the worst of these steps

  bool clean() const { return wrong == 0 && refused == 0; }
};

/// Virtual seconds until rates are known and windows are open; `share` and `worst` leave them out.
inline constexpr double kGoodputStart = 0.2;

/// An error: the world could not be opened.
Result<Goodput> measure_goodput(const GoodputOptions& options);

}  // namespace railyard::sim
