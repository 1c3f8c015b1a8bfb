/// Bytes that say where they belong: every message, guard and get of the soak programs has a key, and every byte
/// follows from the key and its place, so that bytes of another message, of another place or of nobody are told apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/random.hpp"

namespace railyard::soak {

/// What went wrong, by kind. All must stay 0.
struct Findings {
  std::uint64_t lost = 0;     ///< announced and not there
  std::uint64_t doubled = 0;  ///< applied more than once
  std::uint64_t early = 0;    ///< announced before it was there
  std::uint64_t corrupt = 0;  ///< there with other bytes or another value
  std::uint64_t ghost = 0;    ///< memory that nobody may write has changed

  std::uint64_t total() const { return lost + doubled + early + corrupt + ghost; }
  Findings& operator+=(const Findings& other) {
    lost += other.lost, doubled += other.doubled, early += other.early, corrupt += other.corrupt, ghost += other.ghost;
    return *this;
  }
};

/// What a key is for: the same number never gives the same bytes twice.
enum class Use : std::uint8_t { message, guard, shelf, poison, size, value };

inline std::uint64_t key_of(Use use, int source, int target, std::uint64_t number) {
  const auto pair = static_cast<std::uint64_t>(source) << 32U | static_cast<std::uint32_t>(target);
  Random mixed(number * 8 + static_cast<std::uint64_t>(use));
  return Random(mixed.next() ^ pair * 0xbf58476d1ce4e5b9ULL).next();
}

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;

/// Writes the bytes of `key` from its place `first` on (a multiple of 8).
inline void fill(std::span<std::byte> memory, std::uint64_t key, std::size_t first = 0) {
  std::uint64_t word = key + first / 8 * kStep;
  std::size_t at = 0;
  for (; at + 8 <= memory.size(); at += 8, word += kStep) std::memcpy(memory.data() + at, &word, 8);
  std::memcpy(memory.data() + at, &word, memory.size() - at);
}

/// Whether the bytes are those of `key` from its place `first` on.
inline bool holds(std::span<const std::byte> memory, std::uint64_t key, std::size_t first = 0) {
  std::uint64_t word = key + first / 8 * kStep;
  std::uint64_t difference = 0;
  std::size_t at = 0;
  for (; at + 8 <= memory.size(); at += 8, word += kStep) {
    std::uint64_t held;
    std::memcpy(&held, memory.data() + at, 8);
    difference |= held ^ word;
  }
  return difference == 0 && std::memcmp(memory.data() + at, &word, memory.size() - at) == 0;
}

}  // namespace railyard::soak
