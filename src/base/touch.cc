#include "base/touch.hpp"

#include <cstdint>

// Weak: a linker that was not given cmake/hot.ld leaves them null.
extern "C" {
[[gnu::weak]] extern const std::byte railyard_hot_begin[];
[[gnu::weak]] extern const std::byte railyard_hot_end[];
}

namespace railyard {
namespace {

constexpr std::uintptr_t kLine = 64;

}  // namespace

[[gnu::hot]] __attribute__((no_sanitize("address", "thread", "undefined"))) void touch(const void* memory,
                                                                                       std::size_t bytes) {
  if (memory == nullptr) return;  // of what is not there yet
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  for (std::uintptr_t at = begin & ~(kLine - 1); at < begin + bytes; at += kLine)
    (void)*reinterpret_cast<const volatile std::byte*>(at);
}

[[gnu::hot]] void touch_hot_code() {
  touch(railyard_hot_begin, static_cast<std::size_t>(railyard_hot_end - railyard_hot_begin));
}

bool is_hot(const void* function) { return function >= railyard_hot_begin && function < railyard_hot_end; }
bool knows_hot_code() { return railyard_hot_begin != nullptr; }

}  // namespace railyard
