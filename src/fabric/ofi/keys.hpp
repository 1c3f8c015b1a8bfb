/// Registration keys for providers that leave their choice to us.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_set>

#include "railyard/result.hpp"

namespace railyard::fabric::ofi {

/// Hands out keys that no live registration has. A key is given back only after its registration is closed: before that
/// a concurrent registration would be refused for using it.
class KeyPool {
 public:
  /// Keys of `key_bytes` bytes, each drawn at random: knowing one says nothing about the others, and a stale one hardly
  /// ever names something.
  static Result<KeyPool> open(std::size_t key_bytes);
  KeyPool() = default;

  Result<std::uint64_t> take();
  void give(std::uint64_t key) { used_.erase(key); }

 private:
  Result<std::uint64_t> draw();

  std::uint64_t mask_ = 0;
  std::array<std::uint64_t, 32> drawn_{};  ///< a system call for many keys
  std::size_t left_ = 0;
  std::unordered_set<std::uint64_t> used_;
};

}  // namespace railyard::fabric::ofi
