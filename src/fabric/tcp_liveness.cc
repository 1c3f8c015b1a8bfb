#include "fabric/tcp_liveness.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace railyard::fabric {
namespace {

constexpr int kAskSeconds = 1;
/// An acknowledgement that is older says nothing, where more should have come.
constexpr std::uint32_t kFreshMilliseconds = 3000;
/// Segments or probes in a row that nobody acknowledged.
constexpr int kMostUnanswered = 2;

void set_option(int socket, int level, int name, int value) {
  (void)::setsockopt(socket, level, name, &value, sizeof value);
}

}  // namespace

void keep_asking(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kAskSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kAskSeconds);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
}

Liveness liveness_of(int socket) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (socket < 0 || ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return Liveness::unknown;
  if (info.tcpi_state != TCP_ESTABLISHED && info.tcpi_state != TCP_CLOSE_WAIT) return Liveness::unknown;
  if (info.tcpi_retransmits >= kMostUnanswered || info.tcpi_probes >= kMostUnanswered) return Liveness::unknown;
  // A full receive buffer over there is probed less and less often, and every probe is answered: `tcpi_backoff` counts
  // them, `tcpi_probes` those without an answer.
  const bool probed = info.tcpi_backoff != 0 && info.tcpi_retransmits == 0;
  return probed || info.tcpi_last_ack_recv <= kFreshMilliseconds ? Liveness::alive : Liveness::unknown;
}

}  // namespace railyard::fabric
