/// What a rail needs to make its device's writes to the memory of GPUs visible there before it tells of them. The
/// platform says how for each GPU (accelerator::NicWrites): not at all, by a call of the GPU's driver, or by a read of
/// the GPU's memory through the same device, which comes behind its writes. For reads the rail has a queue pair that is
/// connected to itself, and buffers of its own: in each GPU one that is read, in host memory one that is read into.
#pragma once

#include <memory>
#include <vector>

#include "accelerator/accelerator.hpp"
#include "fabric/verbs/connection_manager.hpp"

namespace railyard::fabric::verbs {

/// A GPU whose memory is, or was, registered.
struct FlushedGpu {
  int device = -1;
  accelerator::NicWrites way = accelerator::NicWrites::in_order;
  std::size_t registrations = 0;
  std::unique_ptr<accelerator::Mapping> memory;
  MemoryRegion region;
};

struct Flush {
  /// What it may have in the completion queue: one read for each.
  static constexpr std::uint32_t kMostGpus = 16;
  /// In a wr_id; below it, the generation of the queue pair.
  static constexpr std::uint64_t kReads = ConnectionManager::kArrives | std::uint64_t{1} << 60;

  /// Before anything else of the device goes: the queue pair, the registrations, and then their memory.
  void close() {
    pair.reset();
    for (FlushedGpu& gpu : gpus) gpu.region.reset();
    gpus.clear();
    target_region.reset();
    under_way = false;
  }
  FlushedGpu* find(int device) {
    for (FlushedGpu& gpu : gpus)
      if (gpu.device == device) return &gpu;
    return nullptr;
  }

  bool active = false;        ///< some GPU needs it: what is found waits in the rail's pending events
  bool under_way = false;     ///< reads are
  bool broken = false;        ///< they failed
  std::uint64_t covers = 0;   ///< the pending events that they speak for
  std::uint64_t visible = 0;  ///< the pending events that may be told
  std::uint32_t generation = 0;
  std::vector<std::uint64_t> target;  ///< what reads bring: nobody looks
  MemoryRegion target_region;
  std::vector<FlushedGpu> gpus;
  QueuePair pair;  ///< null: none yet, or it broke
};

}  // namespace railyard::fabric::verbs
