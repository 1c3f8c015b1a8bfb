#include "fabric/verbs/liveness_port.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "fabric/refusals.hpp"
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
  for (int i = 0; i < kMostPerSweep; ++i) {
    if (!Fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC))) return;
  }
}

LivenessProbe::LivenessProbe(std::uint32_t ipv4, std::uint16_t port) : ipv4_(ipv4), port_(port) {
  if (ipv4 != 0 && port != 0) connect();
}

void LivenessProbe::connect() {
  again_at_ = 0;
  socket_ = open_socket();
  const sockaddr_in address = at(ipv4_, port_);
  if (!socket_ || ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return;
  if (errno == ECONNREFUSED) note_refusal();
}

void LivenessProbe::note_refusal() {
  socket_.reset();
  if (++refusals_ < kRefusalsToBelieve) again_at_ = SteadyClock().now() + kRefusalPause;
}

void LivenessProbe::try_again() {
  if (again_at_ != 0 && SteadyClock().now() >= again_at_) connect();
}

bool LivenessProbe::look() {
  pollfd one{socket_.get(), POLLOUT, 0};
  if (::poll(&one, 1, 0) <= 0) return false;
  int error = 0;
  socklen_t bytes = sizeof error;
  (void)::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error == ECONNREFUSED)
    note_refusal();
  else if (error != 0)
    socket_.reset();
  return error == 0;
}

Liveness LivenessProbe::liveness() {
  try_again();
  if (refusals_ >= kRefusalsToBelieve) return Liveness::gone;
  if (!socket_) return Liveness::unknown;
  if (!stands_) {
    if (!look()) return refusals_ >= kRefusalsToBelieve ? Liveness::gone : Liveness::unknown;
    stands_ = true;
    refusals_ = 0;
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
  try_again();
  if (socket_ && look()) socket_.reset();  // somebody is there
  return refusals_ >= kRefusalsToBelieve;
}

}  // namespace railyard::fabric::verbs
