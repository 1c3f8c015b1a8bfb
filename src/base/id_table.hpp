/// Ids with generations: an id that outlived its entry is found out, never mistaken for the entry's successor.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "railyard/result.hpp"

namespace railyard {

/// A 32-bit id is an index (low 16 bits) and a generation (high 16 bits, never 0, so no id is 0). Entries do not move
/// while they live. Freed indices are used again in the order they were freed, which makes the time until a
/// generation comes round as long as it can be. One thread at a time.
template <typename T>
class IdTable {
 public:
  static constexpr std::size_t kMost = 1U << 16U;

  /// Holds at most `most` entries (itself at most 65536).
  explicit IdTable(std::size_t most = kMost) : most_(std::min(most, kMost)) {}

  /// Stores `value` and names it. Fails with `no_memory` when the table is at its bound.
  Result<std::uint32_t> insert(T value) {
    std::uint32_t index = first_free_;
    if (index != kNone) {
      first_free_ = slot(index).next_free;
      if (first_free_ == kNone) last_free_ = kNone;
    } else if (made_ < most_) {
      if (made_ % kBlock == 0) blocks_.push_back(std::make_unique<Block>());
      index = static_cast<std::uint32_t>(made_++);
    } else {
      return Error(Status::no_memory, fmt::format("all {} ids of a table are in use", most_));
    }
    Slot& entry = slot(index);
    entry.value.emplace(std::move(value));
    ++size_;
    return entry.generation << 16U | index;
  }

  /// The entry of that name; null for one that never was or is no more.
  T* find(std::uint32_t id) {
    const std::uint32_t index = id & 0xffffU;
    if (index >= made_) return nullptr;
    Slot& entry = slot(index);
    return entry.value && entry.generation == id >> 16U ? &*entry.value : nullptr;
  }
  const T* find(std::uint32_t id) const { return const_cast<IdTable*>(this)->find(id); }

  /// Ends the entry and its id; false when there is none of that name.
  bool erase(std::uint32_t id) {
    if (find(id) == nullptr) return false;
    const std::uint32_t index = id & 0xffffU;
    Slot& entry = slot(index);
    entry.value.reset();
    entry.generation = entry.generation == 0xffffU ? 1 : entry.generation + 1;
    entry.next_free = kNone;
    if (last_free_ == kNone) {
      first_free_ = index;
    } else {
      slot(last_free_).next_free = index;
    }
    last_free_ = index;
    --size_;
    return true;
  }

  std::size_t size() const noexcept { return size_; }

  /// Calls `visit(id, T&)` for every entry. `visit` may erase the entry it is given, no other.
  template <typename Visit>
  void for_each(Visit&& visit) {
    for (std::size_t index = 0; index < made_; ++index) {
      Slot& entry = slot(static_cast<std::uint32_t>(index));
      if (entry.value) visit(entry.generation << 16U | static_cast<std::uint32_t>(index), *entry.value);
    }
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t kBlock = 64;

  struct Slot {
    std::optional<T> value;
    std::uint32_t generation = 1;
    std::uint32_t next_free = kNone;
  };
  using Block = std::array<Slot, kBlock>;

  Slot& slot(std::uint32_t index) { return (*blocks_[index / kBlock])[index % kBlock]; }

  std::size_t most_;
  std::size_t made_ = 0;
  std::size_t size_ = 0;
  std::uint32_t first_free_ = kNone;
  std::uint32_t last_free_ = kNone;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace railyard
