#include "launcher/tagger.hpp"

#include <fmt/format.h>

#include <utility>

namespace railyard::launcher {

LineTagger::LineTagger(std::int32_t rank) : tag_(fmt::format("[{}] ", rank)) {}

std::string LineTagger::feed(std::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    held_ += bytes.substr(0, end);
    bytes.remove_prefix(whole ? end + 1 : bytes.size());
    if (whole || held_.size() >= kMostHeld) lines += tag_ + std::exchange(held_, {}) + '\n';
  }
  return lines;
}

std::string LineTagger::finish() { return held_.empty() ? std::string() : tag_ + std::exchange(held_, {}) + '\n'; }

}  // namespace railyard::launcher
