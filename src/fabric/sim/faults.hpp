/// What can go wrong in a simulated world, by name. A kind turns up some of the rails' options, at random but from the
/// seed alone. To add one: write its function and list it in faults.cc.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "fabric/sim/options.hpp"
#include "railyard/result.hpp"

namespace railyard::fabric::sim {

struct FaultKind {
  std::string_view name;
  std::string_view meaning;
  void (*apply)(FabricOptions& options, Random& random);
  double share;  ///< of the schedules that draw their kinds
};

std::span<const FaultKind> fault_kinds();

/// The kinds of a comma list; "none" is an empty one. An unknown name is an error that lists the known ones.
Result<std::vector<const FaultKind*>> parse_faults(std::string_view names);

}  // namespace railyard::fabric::sim
