/// Data that both ranks can make for themselves: what was moved is compared byte for byte with what should have come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "base/random.hpp"

namespace railyard::bench {

/// How the generator moves on with each word: the state is a plain sum, so any word can be reached at once.
inline constexpr std::uint64_t kPatternStep = 0x9e3779b97f4a7c15ULL;

/// The generator of a pattern from its word `word` on: patterns can be checked from any multiple of 8 bytes.
inline Random pattern_from(std::uint64_t seed, std::uint64_t word) { return Random(seed + word * kPatternStep); }

/// Fills `memory` with the pattern of `seed` from its word `word` on.
inline void fill_pattern(std::span<std::byte> memory, std::uint64_t seed, std::uint64_t word = 0) {
  Random random = pattern_from(seed, word);
  for (std::size_t at = 0; at < memory.size(); at += 8) {
    const std::uint64_t value = random.next();
    std::memcpy(memory.data() + at, &value, memory.size() - at < 8 ? memory.size() - at : 8);
  }
}

/// The first place where `memory` differs from the pattern, to 8 bytes; nothing if it is right.
inline std::optional<std::size_t> find_difference(std::span<const std::byte> memory, std::uint64_t seed,
                                                  std::uint64_t word = 0) {
  Random random = pattern_from(seed, word);
  for (std::size_t at = 0; at < memory.size(); at += 8) {
    const std::uint64_t value = random.next();
    if (std::memcmp(memory.data() + at, &value, memory.size() - at < 8 ? memory.size() - at : 8) != 0) return at;
  }
  return std::nullopt;
}

}  // namespace railyard::bench
