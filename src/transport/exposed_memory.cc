#include "transport/exposed_memory.hpp"

#include <span>

namespace railyard::transport {

void ExposedMemory::conceal(std::uint32_t id) {
  const ExposedRegion* const found = regions_.find(id);
  if (found == nullptr) return;
  const ExposedRegion region = *found;
  regions_.erase(id);  // first: what comes next for it is refused
  if (region.device >= 0) words_.settle(region.memory);
  if (region.mirrored != nullptr) settle(*region.mirrored);
}

void ExposedMemory::settle(MirroredWords& words) {
  words_.unwatch(words);
  words_.settle(std::as_bytes(words.words()));
  words_.settle(std::as_bytes(words.adds()));
}

void ExposedMemory::forget_mirror(MirroredWords& counters) {
  std::erase(mirrored_counters_, &counters);
  settle(counters);
}

void ExposedMemory::write_counter(const std::uint64_t* counter) {
  for (MirroredWords* mirrored : mirrored_counters_) {
    const std::span<std::uint64_t> latest = mirrored->latest();
    if (counter < latest.data() || counter >= latest.data() + latest.size()) continue;
    return words_.write(*mirrored, static_cast<std::size_t>(counter - latest.data()), {});
  }
}

}  // namespace railyard::transport
