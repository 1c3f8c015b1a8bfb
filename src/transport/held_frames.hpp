/// HeldFrames: messages of a flow that came before their turn, by sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "memory/slab.hpp"

namespace railyard::transport {

/// Costs nothing until the first; grows with the distance between what is held, so a flow whose rails keep step stays
/// small.
class HeldFrames {
 public:
  void put(std::uint32_t sequence, memory::Buffer* buffer) {
    if (places_.empty()) places_.resize(kFirstPlaces);
    while (place(sequence).buffer != nullptr) grow();
    place(sequence) = {sequence, buffer};
  }
  /// The frame of that number, which is then no longer held; null if there is none.
  memory::Buffer* take(std::uint32_t sequence) {
    if (places_.empty() || place(sequence).sequence != sequence) return nullptr;
    return std::exchange(place(sequence).buffer, nullptr);
  }
  /// Gives every frame up.
  template <typename Visit>
  void release(Visit&& visit) {
    for (Place& held : places_) {
      if (held.buffer != nullptr) visit(std::exchange(held.buffer, nullptr));
    }
  }
  bool holds(std::uint32_t sequence) const {
    if (places_.empty()) return false;
    const Place& found = places_[sequence & (places_.size() - 1)];
    return found.buffer != nullptr && found.sequence == sequence;
  }

 private:
  static constexpr std::size_t kFirstPlaces = 8;  // a power of two, like every later size
  struct Place {
    std::uint32_t sequence = 0;
    memory::Buffer* buffer = nullptr;
  };
  Place& place(std::uint32_t sequence) { return places_[sequence & (places_.size() - 1)]; }
  /// Twice the places: numbers that fell together may part. Those of one window do at the latest at its size.
  void grow() {
    std::vector<Place> old(places_.size() * 2);
    old.swap(places_);
    for (const Place& held : old) {
      if (held.buffer != nullptr) place(held.sequence) = held;
    }
  }
  std::vector<Place> places_;
};

}  // namespace railyard::transport
