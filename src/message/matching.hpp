/// Which slot of a receive a message takes. Both ends go by this: they must come to the same answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace railyard::message {

/// `Place` has a `tag` and says whether it is `taken`. The only slot is for the message whose turn it is (`first`),
/// whatever its tag; among several the tag decides.
template <typename Place, std::size_t kExtent>
std::optional<std::uint8_t> slot_for(std::span<Place, kExtent> places, int tag, bool first) {
  if (places.size() == 1) return first && !places[0].taken ? std::optional<std::uint8_t>(0) : std::nullopt;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!places[i].taken && places[i].tag == tag) return static_cast<std::uint8_t>(i);
  }
  return std::nullopt;
}

}  // namespace railyard::message
