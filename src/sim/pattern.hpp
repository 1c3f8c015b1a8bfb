/// Bytes that can be checked: what an operation carries follows from who sent it and which one it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/random.hpp"

namespace railyard::sim {

class Pattern {
 public:
  static constexpr std::size_t kWord = 8;

  Pattern() = default;
  Pattern(std::uint64_t seed, std::uint64_t source, std::uint64_t operation)
      : key_(Random(seed ^ (source << 48U) ^ (operation << 8U)).next()) {}

  std::byte at(std::size_t index) const {
    return static_cast<std::byte>(word(index / kWord) >> (8U * (index % kWord)));
  }
  void fill(std::span<std::byte> bytes) const {
    std::size_t index = 0;
    for (; index + kWord <= bytes.size(); index += kWord) {
      const std::uint64_t value = word(index / kWord);
      std::memcpy(bytes.data() + index, &value, kWord);
    }
    for (; index < bytes.size(); ++index) bytes[index] = at(index);
  }
  /// Whether `bytes` are those from index `first` on, a multiple of a word.
  bool matches(std::span<const std::byte> bytes, std::size_t first = 0) const {
    std::size_t index = 0;
    std::uint64_t difference = 0;
    for (; index + kWord <= bytes.size(); index += kWord) {
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data() + index, kWord);
      difference |= value ^ word((first + index) / kWord);
    }
    if (difference != 0) return false;
    for (; index < bytes.size(); ++index) {
      if (bytes[index] != at(first + index)) return false;
    }
    return true;
  }

 private:
  /// Every word differs from its neighbours, so a chunk in the wrong place shows.
  std::uint64_t word(std::size_t index) const {
    std::uint64_t mixed = key_ + index * 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ (mixed >> 32U)) * 0xd6e8feb86659fd93ULL;
    return mixed ^ (mixed >> 32U);
  }
  std::uint64_t key_ = 0;
};

}  // namespace railyard::sim
