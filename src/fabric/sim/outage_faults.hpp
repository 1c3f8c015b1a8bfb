/// The kinds of fault that take rails, completions and processes away. Every pair of processes keeps a way: the rails
/// of one number, the spare ones, always come back.
#pragma once

#include "base/random.hpp"
#include "fabric/sim/options.hpp"

namespace railyard::fabric::sim {

void kill_rails(FabricOptions& options, Random& random);
void flap(FabricOptions& options, Random& random);
void black_hole(FabricOptions& options, Random& random);
void lost_completion(FabricOptions& options, Random& random);
void late_packets(FabricOptions& options, Random& random);
void two_of_four(FabricOptions& options, Random& random);
void peer_death(FabricOptions& options, Random& random);

}  // namespace railyard::fabric::sim
