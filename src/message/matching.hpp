/// Which slot of which receive a message takes. The messages of one tag are a stream of their own: the first goes into
/// the first slot of that tag, over all receives in the order in which they were posted, the second into the second.
/// What either end knows at which moment changes nothing in that, so both come to the same answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace railyard::message {

/// The first free slot of that tag. `Slot` has a `tag` and says whether it is `taken`.
template <typename Slot, std::size_t kExtent>
std::optional<std::uint8_t> free_slot(std::span<Slot, kExtent> slots, int tag) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].taken && slots[i].tag == tag) return static_cast<std::uint8_t>(i);
  }
  return std::nullopt;
}

}  // namespace railyard::message
