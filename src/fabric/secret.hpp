/// The secret of a rail that takes connections. It travels inside the rail's address, which the bootstrap and the
/// set-up of channels protect, so whoever knows it belongs to the job. No driver sends it: peers prove it with MACs.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace railyard::fabric {

using Secret = std::array<std::byte, 32>;

/// What MACs are made with: the rail's secret, mixed with the job's key where there is one.
Secret admission_key(const Secret& rail, std::span<const std::byte> job_key);

}  // namespace railyard::fabric
