/// Who a process is, and which machine it is on: never an address, a pid or an index, all of which can be the same for
/// two processes.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>

namespace railyard {

struct Identity {
  std::array<std::uint8_t, 16> bytes{};

  /// A new one, from the system's random bytes.
  static Identity make();
  auto operator<=>(const Identity&) const = default;  // NOLINT(modernize-use-nullptr): the compiler wrote it
  /// 32 hexadecimal digits.
  std::string text() const;
};

/// A word that only processes share which reach each other over this machine's inside: its boot, its network namespace,
/// its shared memory.
std::string machine_word();

}  // namespace railyard
