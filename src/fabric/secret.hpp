/// The secret of a rail: whoever knows it may connect. It travels inside the rail's address, which the bootstrap
/// protects.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace railyard::fabric {

using Secret = std::array<std::byte, 32>;

/// What connections prove: the rail's secret, mixed with the job's key where there is one.
Secret admission_key(const Secret& rail, std::span<const std::byte> job_key);

}  // namespace railyard::fabric
