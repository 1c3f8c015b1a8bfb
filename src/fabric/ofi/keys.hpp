/// Registration keys for providers that leave their choice to us.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "railyard/result.hpp"

namespace railyard::fabric::ofi {

/// Hands out keys that no live registration has. A key is given back only after its registration is closed: before that
/// a concurrent registration would be refused for using it.
class KeyPool {
 public:
  /// Keys of `key_bytes` bytes, from a random start: a stale key of an earlier run hardly ever names something.
  static Result<KeyPool> open(std::size_t key_bytes);
  KeyPool() = default;

  Result<std::uint64_t> take();
  void give(std::uint64_t key) { used_.erase(key); }

 private:
  std::uint64_t mask_ = 0;
  std::uint64_t next_ = 0;
  std::unordered_set<std::uint64_t> used_;
};

}  // namespace railyard::fabric::ofi
