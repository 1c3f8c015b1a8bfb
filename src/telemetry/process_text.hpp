/// Texts in the files of processes: of fixed room, written by one version and read by any.
#pragma once

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>

namespace railyard::telemetry {

template <std::size_t Size>
void put_text(std::array<char, Size>& to, std::string_view text) {
  to.fill('\0');
  text.copy(to.data(), Size - 1);
}

/// As much text as there is, and no control characters: it goes to terminals.
template <std::size_t Size>
std::string text_of(const std::array<char, Size>& from) {
  std::string text(from.data(), ::strnlen(from.data(), Size));
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, '?');
  return text;
}

inline std::string host_name() {
  std::array<char, 64> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

inline std::string command_name() {
  std::ifstream in("/proc/self/comm");
  std::string name;
  std::getline(in, name);
  return name;
}

}  // namespace railyard::telemetry
