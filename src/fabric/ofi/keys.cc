#include "fabric/ofi/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/entropy.hpp"

namespace railyard::fabric::ofi {

Result<KeyPool> KeyPool::open(std::size_t key_bytes) {
  KeyPool pool;
  if (key_bytes == 0) return Error(Status::unsupported, "the provider leaves keys to us but has no room for any");
  // Of 64 bits one is left out: all ones means "no key" to libfabric.
  pool.mask_ = key_bytes >= sizeof(std::uint64_t) ? INT64_MAX : (std::uint64_t{1} << (8 * key_bytes)) - 1;
  return pool;
}

Result<std::uint64_t> KeyPool::draw() {
  if (left_ == 0) {
    if (auto filled = fill_random(std::as_writable_bytes(std::span(drawn_))); !filled) return std::move(filled.error());
    left_ = drawn_.size();
  }
  return drawn_[--left_] & mask_;
}

Result<std::uint64_t> KeyPool::take() {
  if (used_.size() >= mask_)
    return Error(Status::no_memory, fmt::format("all {} registration keys of this rail are in use", mask_));
  for (;;) {
    auto key = draw();
    if (!key || used_.insert(*key).second) return key;
  }
}

}  // namespace railyard::fabric::ofi
