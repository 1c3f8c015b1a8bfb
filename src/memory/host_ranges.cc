#include "memory/host_ranges.hpp"

#include <pthread.h>

#include <algorithm>

namespace railyard::memory {

void HostRanges::add(std::span<const std::byte> memory) {
  if (memory.empty()) return;
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  // The whole of its first and last page: a page is one or the other.
  const std::uint64_t first = address >> kPageBits;
  const std::uint64_t end = ((address + memory.size() - 1) >> kPageBits) + 1;
  if (end <= first || end >> (64 - kCountBits) != 0) return;
  const std::uint64_t word = first << kCountBits | std::min(end - first, kMostPages);
  const auto same = [word](const auto& range) { return range.load(std::memory_order_relaxed) == word; };
  if (std::ranges::any_of(ranges_, same)) return;
  ranges_[next_].store(word, std::memory_order_relaxed);
  next_ = (next_ + 1) % kMost;
}

void HostRanges::remove(std::span<const std::byte> memory) {
  if (memory.empty()) return;
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uint64_t first = address >> kPageBits;
  const std::uint64_t last = (address + memory.size() - 1) >> kPageBits;
  for (auto& range : ranges_) {
    const std::uint64_t word = range.load(std::memory_order_relaxed);
    const std::uint64_t from = word >> kCountBits;
    if (from <= last && from + (word & kMostPages) > first) range.store(0, std::memory_order_relaxed);
  }
}

OwnStack::Bounds OwnStack::find() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* lowest = nullptr;
  std::size_t bytes = 0;
  const int code = pthread_attr_getstack(&attributes, &lowest, &bytes);
  pthread_attr_destroy(&attributes);
  return code == 0 ? Bounds{reinterpret_cast<std::uintptr_t>(lowest), bytes} : Bounds{};
}

}  // namespace railyard::memory
