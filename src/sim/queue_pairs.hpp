/// What a large job costs a NIC: the queue pairs of one process whose channels lead to every other, counted from the
/// links that its rails were really asked for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "railyard/result.hpp"

namespace railyard::sim {

inline constexpr std::uint32_t kRanksPerNode = 8;

/// Who talks to whom: a job of nodes with eight ranks, each with rails of its own; every two of them that talk have so
/// many channels in each direction, as NCCL has connections.
struct QueuePairCase {
  std::uint32_t ranks = 0;  ///< a multiple of eight, two nodes at least
  std::uint32_t rails = 1;
  std::uint32_t channels = 1;
  std::uint32_t shared_links = 1;  ///< RAILYARD_SHARED_LINKS
  bool same_local_rank = false;    ///< only with the same local rank on each node: the others hand over inside it

  std::uint32_t peers() const { return same_local_rank ? ranks / kRanksPerNode - 1 : ranks - kRanksPerNode; }
};

struct QueuePairs {
  std::size_t links = 0;  ///< that begin or end at the process
  std::size_t pairs = 0;  ///< two links that face each other over the same two rails are one queue pair
};

/// Opens the process and its peers on simulated rails, and the channels one by one.
Result<QueuePairs> count_queue_pairs(const QueuePairCase& shape);

}  // namespace railyard::sim
