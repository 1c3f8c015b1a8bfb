/// The memory that peers may reach through one rail, by key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace railyard::fabric::shm {

/// A key is a slot in the table and a random number of its own for each use: one key says nothing of another, and those
/// of an earlier rail hardly ever name something.
class Registrations {
 public:
  /// `random`: the key's own. `device`: of which GPU; -1: host memory.
  std::uint64_t add(std::span<std::byte> memory, int device, std::uint32_t random) {
    std::uint32_t slot = static_cast<std::uint32_t>(entries_.size());
    if (free_.empty()) {
      entries_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    Entry& entry = entries_[slot];
    entry.memory = memory;
    entry.use = random == entry.use ? ~random : random;  // never the one before
    entry.device = device;
    entry.live = true;
    return std::uint64_t{entry.use} << 32U | slot;
  }

  /// From here on nothing is done under this key.
  void remove(std::uint64_t key) {
    if (Entry* const entry = live(key)) {
      entry->live = false;
      free_.push_back(static_cast<std::uint32_t>(key));
    }
  }

  struct Found {
    std::byte* memory = nullptr;
    int device = -1;
    explicit operator bool() const { return memory != nullptr; }
    bool on_device() const { return device >= 0; }
  };
  /// The memory that `bytes` at `address` (a pointer of this process) mean under the key; null: they are not ours to
  /// touch.
  Found find(std::uint64_t key, std::uint64_t address, std::uint64_t bytes) {
    const Entry* const entry = live(key);
    if (entry == nullptr) return {};
    const std::uint64_t offset = address - reinterpret_cast<std::uintptr_t>(entry->memory.data());
    if (offset > entry->memory.size() || bytes > entry->memory.size() - offset) return {};
    return {entry->memory.data() + offset, entry->device};
  }

  void clear() {
    entries_.clear();
    free_.clear();
  }

 private:
  struct Entry {
    std::span<std::byte> memory;
    std::uint32_t use = 0;
    int device = -1;
    bool live = false;
  };
  Entry* live(std::uint64_t key) {
    const auto slot = static_cast<std::uint32_t>(key);
    if (slot >= entries_.size()) return nullptr;
    Entry& entry = entries_[slot];
    return entry.live && entry.use == key >> 32U ? &entry : nullptr;
  }

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
};

}  // namespace railyard::fabric::shm
