/// The kinds of fault that drivers, processes and programs bring in: completions that come after the fact, writes in
/// part, processes that stop, memory that is taken back, and arrivals from nobody.
#pragma once

#include "base/random.hpp"
#include "fabric/sim/options.hpp"

namespace railyard::fabric::sim {

void late_success(FabricOptions& options, Random& random);
void partial_writes(FabricOptions& options, Random& random);
void pauses(FabricOptions& options, Random& random);
void deregister(FabricOptions& options, Random& random);
void refusals(FabricOptions& options, Random& random);
void aborts(FabricOptions& options, Random& random);
void unauthenticated(FabricOptions& options, Random& random);

}  // namespace railyard::fabric::sim
