/// What a peer costs: heap bytes of a rank's engine, world and window for each other rank, measured on simulated rails.
#pragma once

#include <cstddef>
#include <cstdint>

#include "railyard/result.hpp"

namespace railyard::sim {

struct MemoryUse {
  std::uint32_t ranks = 0;
  std::uint32_t rails = 0;
  double per_rank = 0;         ///< bytes that a rank has whatever the size of its world
  double per_known_peer = 0;   ///< bytes more for each rank of the world, never talked to
  double per_active_peer = 0;  ///< bytes more on top of that for each one talked to, both ways
  double resident = 0;         ///< bytes of this process in memory at the end, with all its ranks and the simulator
};

/// Opens a world of so many ranks with one window, lets rank 0 exchange small and large puts with every other one, and
/// counts what the allocator handed out. The simulator's own memory is taken off.
Result<MemoryUse> measure_memory(std::uint32_t ranks, std::uint32_t rails);

}  // namespace railyard::sim
