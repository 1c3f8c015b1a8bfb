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
    if (slots_.empty()) slots_.resize(kFirstSlots);
    while (slot(sequence).buffer != nullptr) grow();
    slot(sequence) = {sequence, buffer};
  }
  /// The frame of that number, which is then no longer held; null if there is none.
  memory::Buffer* take(std::uint32_t sequence) {
    if (slots_.empty() || slot(sequence).sequence != sequence) return nullptr;
    return std::exchange(slot(sequence).buffer, nullptr);
  }
  /// Gives every frame up.
  template <typename Visit>
  void release(Visit&& visit) {
    for (Slot& held : slots_) {
      if (held.buffer != nullptr) visit(std::exchange(held.buffer, nullptr));
    }
  }
  bool holds(std::uint32_t sequence) const {
    if (slots_.empty()) return false;
    const Slot& found = slots_[sequence & (slots_.size() - 1)];
    return found.buffer != nullptr && found.sequence == sequence;
  }

 private:
  static constexpr std::size_t kFirstSlots = 8;  // a power of two, like every later size
  struct Slot {
    std::uint32_t sequence = 0;
    memory::Buffer* buffer = nullptr;
  };
  Slot& slot(std::uint32_t sequence) { return slots_[sequence & (slots_.size() - 1)]; }
  /// Twice the slots: numbers that fell together may part. Those of one window do at the latest at its size.
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& held : old) {
      if (held.buffer != nullptr) slot(held.sequence) = held;
    }
  }
  std::vector<Slot> slots_;
};

}  // namespace railyard::transport
