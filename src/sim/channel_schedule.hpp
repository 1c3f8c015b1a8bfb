/// One schedule of channels: processes, a network with faults, settings and a random program, all from one seed. What
/// `sim/schedule.hpp` is to windows.
#pragma once

#include <cstdint>

#include "sim/plan.hpp"
#include "sim/schedule.hpp"

namespace railyard::sim {

/// An error: the workers could not be opened.
Result<Outcome> run_channel_schedule(std::uint64_t seed, const ScenarioOptions& options);

}  // namespace railyard::sim
