/// The ports that a process may listen at (RAILYARD_PORTS): what a firewall lets through.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "railyard/result.hpp"

namespace railyard {

struct PortRange {
  std::uint16_t first = 0;  ///< 0: the kernel chooses
  std::uint16_t last = 0;

  /// "50000-50099", "50000" or "": any.
  static Result<PortRange> parse(std::string_view text);
  bool any() const { return first == 0; }
  std::uint32_t count() const { return any() ? 0 : std::uint32_t{last} - first + 1; }
  std::string text() const;
};

/// A socket that listens at `address`, with a port of the range in place of its own; `address` then has that port.
/// `open` makes the socket: more than one where another process is faster at a port.
///
/// All listeners of a process begin their search at the same port. Those at different addresses therefore share one
/// number: a process whose rails are on different NICs needs one port for all of them.
Result<Fd> listen_within(const PortRange& range, sockaddr_storage& address, socklen_t length, int backlog,
                         const std::function<Fd()>& open);

}  // namespace railyard
