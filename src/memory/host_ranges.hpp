/// HostRanges: addresses that are the host's without a question to a GPU's driver, which takes longer than a small put.
/// Somebody has promised that what is mapped there stays until it is taken out again, so no GPU's memory can take its
/// place.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace railyard::memory {

/// Only the last few: others are asked about. Changed by one thread at a time; any thread may look.
class HostRanges {
 public:
  static constexpr std::size_t kMost = 8;

  void add(std::span<const std::byte> memory);
  /// Takes out what touches these bytes' pages.
  void remove(std::span<const std::byte> memory);
  /// False says nothing.
  bool hold(const void* memory, std::size_t bytes) const {
    for (std::size_t i = 0; i < kMost; ++i) {
      if (!lies_in(i, memory, bytes)) continue;
      recent_.store(i, std::memory_order_relaxed);
      return true;
    }
    return false;
  }
  /// The same of the one that held what was asked about last.
  [[gnu::always_inline]] bool hold_again(const void* memory, std::size_t bytes) const {
    return lies_in(recent_.load(std::memory_order_relaxed), memory, bytes);
  }

 private:
  static constexpr unsigned kPageBits = 12;
  static constexpr unsigned kCountBits = 28;
  static constexpr std::uint64_t kMostPages = (std::uint64_t{1} << kCountBits) - 1;

  [[gnu::always_inline]] bool lies_in(std::size_t range, const void* memory, std::size_t bytes) const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    // Relaxed: whoever asks has learnt of the memory from whoever added it.
    const std::uint64_t word = ranges_[range].load(std::memory_order_relaxed);
    const std::uint64_t from = word >> kCountBits;
    const std::uint64_t pages = word & kMostPages;
    return (address >> kPageBits) - from < pages && ((address + bytes - 1) >> kPageBits) - from < pages;
  }

  /// A first page, and how many: one word each, so that nobody sees half of a change. 0: none.
  std::array<std::atomic<std::uint64_t>, kMost> ranges_{};
  mutable std::atomic<std::size_t> recent_{0};
  std::size_t next_ = 0;
};

/// The calling thread's stack: the host's for as long as the thread runs.
class OwnStack {
 public:
  [[gnu::always_inline]] static bool holds(const void* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) - own.lowest < own.bytes;
  }
  /// Finds it out. Some microseconds, once for each thread.
  static void look() {
    if (own.bytes == 0) own = find();
  }

 private:
  struct Bounds {
    std::uintptr_t lowest;
    std::size_t bytes;
  };
  static Bounds find();
  // Initial-exec: found by one load; the other models call a function for it.
  [[gnu::tls_model("initial-exec")]] static inline thread_local Bounds own{0, 0};
};

}  // namespace railyard::memory
