#include "fabric/tcp_delivery.hpp"

// The kernel's header: the C library's does not know all of it, and the two cannot be used together.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace railyard::fabric {

std::optional<Delivery> delivery_of(int socket) {
  constexpr std::uint8_t kEstablished = 1;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (socket < 0 || ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return std::nullopt;
  const bool whole = bytes >= offsetof(tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked;
  if (!whole || info.tcpi_state != kEstablished) return std::nullopt;
  // What a full receive buffer over there keeps from being sent is not unacknowledged: it waits for the process.
  return Delivery{info.tcpi_bytes_acked, info.tcpi_unacked != 0};
}

}  // namespace railyard::fabric
