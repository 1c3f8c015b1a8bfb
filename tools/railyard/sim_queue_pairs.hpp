/// `railyard sim --queue-pairs`: what a job of so many ranks costs a NIC, beside what others need for the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace railyard::tool {

/// Counts for each size, prints, and writes what is asked for; an empty name is not. Returns the exit code.
int run_queue_pairs_command(std::span<const std::uint32_t> ranks, std::uint32_t rails, const std::string& json,
                            const std::string& svg);

}  // namespace railyard::tool
