/// What tests of the rendezvous and of its protocols share: contents to send, a key, patience.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"

namespace railyard::rendezvous {

inline constexpr const char* kKey = "open sesame";
/// Long enough for a busy machine under a sanitizer; a test that passes never waits for it.
inline constexpr auto kPatience = std::chrono::seconds(120);

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return bytes.empty() ? "" : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// Descriptors this process has open.
inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator list("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

/// A clock that a test sets.
class ManualClock final : public Clock {
 public:
  std::int64_t now() const override { return now_ns; }
  void idle() override {}
  std::int64_t now_ns = 1'000'000'000'000;
};

}  // namespace railyard::rendezvous
