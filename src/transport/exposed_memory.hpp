/// ExposedMemory: what this process lets peers touch, and the words of its own in the memory of GPUs. With the progress
/// lock held.
#pragma once

#include <cstdint>
#include <vector>

#include "base/id_table.hpp"
#include "railyard/result.hpp"
#include "transport/device_words.hpp"
#include "transport/exposed_region.hpp"

namespace railyard::transport {

class ExposedMemory {
 public:
  /// Makes memory and signals reachable for peers; the id goes to them.
  Result<std::uint32_t> expose(const ExposedRegion& region) { return regions_.insert(region); }
  /// When this returns, no word of it is being changed any more either.
  void conceal(std::uint32_t id);
  /// Null: there is none of that id (any more) for ranks of that world.
  const ExposedRegion* find(std::uint32_t id, const Ranks* world) const {
    const ExposedRegion* const found = regions_.find(id);
    return found != nullptr && (found->world == nullptr || found->world == world) ? found : nullptr;
  }

  /// Words in the memory of GPUs. Whoever begins a change and does not wait for it sees to it that a pass is made
  /// (`Waiting::nudge_later`).
  DeviceWords& words() { return words_; }
  const DeviceWords& words() const { return words_; }
  /// None of these is being read or written any more.
  void settle(MirroredWords& words);

  /// Counters in the memory of a GPU: operations advance `MirroredWords::latest`.
  void mirror_counters(MirroredWords& counters) { mirrored_counters_.push_back(&counters); }
  /// No operation under way advances them any more.
  void forget_mirror(MirroredWords& counters);
  /// An operation has advanced a counter: if it is mirrored, its value goes to the GPU.
  void advanced(const std::uint64_t* counter) {
    if (!mirrored_counters_.empty()) [[unlikely]]
      write_counter(counter);
  }

 private:
  void write_counter(const std::uint64_t* counter);

  IdTable<ExposedRegion> regions_;
  DeviceWords words_;  ///< changes under way
  std::vector<MirroredWords*> mirrored_counters_;
};

}  // namespace railyard::transport
