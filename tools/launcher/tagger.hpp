/// Puts the rank in front of every line that a rank writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace railyard::launcher {

/// Collects one stream of one rank into lines. Holds at most one line, and of a line that never ends a bounded part.
class LineTagger {
 public:
  static constexpr std::size_t kMostHeld = 64 * 1024;

  explicit LineTagger(std::int32_t rank);
  /// The lines that `bytes` complete, each with its tag.
  std::string feed(std::string_view bytes);
  /// What is left when the stream ends, as a line.
  std::string finish();

 private:
  std::string tag_;
  std::string held_;
};

}  // namespace railyard::launcher
