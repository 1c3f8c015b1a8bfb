#include "fabric/verbs/liveness_port.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "fabric/tcp_liveness.hpp"

namespace railyard::fabric::verbs {

namespace {

sockaddr_in at(std::uint32_t ipv4, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ipv4;
  address.sin_port = htons(port);
  return address;
}

Fd open_socket() { return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

}  // namespace

Result<LivenessPort> LivenessPort::open(std::uint32_t ipv4, const PortRange& ports) {
  constexpr int kBacklog = 64;
  LivenessPort made;
  if (ipv4 == 0) return made;
  const sockaddr_in wanted = at(ipv4, 0);
  sockaddr_storage address{};
  std::memcpy(&address, &wanted, sizeof wanted);
  auto socket = listen_within(ports, address, sizeof wanted, kBacklog, &open_socket);
  if (!socket) return std::move(socket.error());
  made.socket_ = std::move(*socket);
  made.port_ = ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  return made;
}

void LivenessPort::sweep() {
  if (!socket_) return;
  while (Fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC))) {
  }
}

LivenessProbe::LivenessProbe(std::uint32_t ipv4, std::uint16_t port) {
  if (ipv4 == 0 || port == 0) return;
  socket_ = open_socket();
  const sockaddr_in address = at(ipv4, port);
  if (socket_ && ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    refused_ = errno == ECONNREFUSED;
}

Liveness LivenessProbe::liveness() {
  if (refused_) socket_.reset();
  if (!socket_) return refused_ ? Liveness::gone : Liveness::unknown;
  if (!stands_) {
    pollfd one{socket_.get(), POLLOUT, 0};
    if (::poll(&one, 1, 0) <= 0) return Liveness::unknown;
    int error = 0;
    socklen_t bytes = sizeof error;
    (void)::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
      refused_ = error == ECONNREFUSED;
      socket_.reset();
      return refused_ ? Liveness::gone : Liveness::unknown;
    }
    stands_ = true;
    keep_asking(socket_.get());
    return Liveness::alive;
  }
  char byte = 0;
  const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (got >= 0) {
    socket_.reset();  // let go of over there
    return Liveness::alive;
  }
  // A connection that its peer's end has reset says nothing for sure: the next one does.
  if (errno != EAGAIN && errno != EWOULDBLOCK) {
    socket_.reset();
    return Liveness::unknown;
  }
  return liveness_of(socket_.get());
}

bool LivenessProbe::refused() {
  if (refused_ || !socket_) return refused_;
  pollfd one{socket_.get(), POLLOUT, 0};
  if (::poll(&one, 1, 0) <= 0) return false;
  int error = 0;
  socklen_t bytes = sizeof error;
  (void)::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  refused_ = error == ECONNREFUSED;
  socket_.reset();
  return refused_;
}

}  // namespace railyard::fabric::verbs
