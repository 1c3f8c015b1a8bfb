#include "bench/raw_socket.hpp"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/clock.hpp"

namespace railyard::bench {

namespace {

constexpr std::uint32_t kTriesPerLook = 4096;

Error socket_error(const char* what) {
  return Error(Status::rail_failed, fmt::format("a bare socket: {}: {}", what, std::strerror(errno)));
}

/// Within a host, as rails do there: a kernel whose default is to pace (bbr) would handicap the bare socket.
void do_not_pace(int socket, const std::string& address) {
  if (address.starts_with("127.") || address == "::1")
    (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", sizeof "reno" - 1);
}

struct AddressCloser {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Address = std::unique_ptr<addrinfo, AddressCloser>;

Address find_address(const std::string& address, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), fmt::format("{}", port).c_str(), &hints, &found) != 0) return nullptr;
  return Address(found);
}

}  // namespace

Result<std::unique_ptr<RawSocket>> RawSocket::open(const std::string& address, std::span<std::byte> exposed,
                                                   std::span<std::byte> buffer, std::uint32_t timeout_ms) {
  std::unique_ptr<RawSocket> bare(new RawSocket);
  bare->address_ = address;
  bare->timeout_ns_ = std::int64_t{timeout_ms} * 1'000'000;
  bare->exposed_ = exposed;
  bare->buffer_ = buffer;
  const Address at = find_address(address, 0);
  if (at == nullptr) {
    return Error(Status::unsupported,
                 fmt::format("--beside socket compares with a bare socket, and '{}' is no address of one", address));
  }
  bare->listener_ = Fd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  do_not_pace(bare->listener_.get(), address);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (!bare->listener_ || ::bind(bare->listener_.get(), at->ai_addr, at->ai_addrlen) != 0 ||
      ::listen(bare->listener_.get(), 1) != 0 ||
      ::getsockname(bare->listener_.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0)
    return socket_error("listen");
  // Both families keep the port at the same place.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  in_port_t port = 0;
  std::memcpy(&port, reinterpret_cast<const std::byte*>(&own) + offsetof(sockaddr_in, sin_port), sizeof port);
  bare->port_ = ntohs(port);
  return bare;
}

Result<void> RawSocket::connect(int rank, const std::string& address, std::uint16_t port) {
  if (rank == 0) {
    const Address peer = find_address(address, port);
    if (peer == nullptr) return Error(Status::unsupported, fmt::format("'{}' is no address of a socket", address));
    socket_ = Fd(::socket(peer->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    do_not_pace(socket_.get(), address);
    if (!socket_ || ::connect(socket_.get(), peer->ai_addr, peer->ai_addrlen) != 0) return socket_error("connect");
  } else {
    socket_ = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket_) return socket_error("accept");
  }
  const int on = 1;
  if (::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) return socket_error("TCP_NODELAY");
  return {};
}

/// Calls until so many bytes are through: `call` gets how many were before.
template <typename Call>
Result<void> RawSocket::move(const char* what, std::size_t bytes, Call&& call) {
  std::int64_t give_up_at = 0;
  std::uint32_t tries = 0;
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t moved = call(done);
    if (moved > 0) {
      done += static_cast<std::size_t>(moved);
      continue;
    }
    if (moved == 0) return Error(Status::rail_failed, "a bare socket: the other rank has closed it");
    if (errno != EAGAIN && errno != EINTR) return socket_error(what);
    if (++tries % kTriesPerLook != 0) continue;
    const std::int64_t now = SteadyClock().now();
    if (give_up_at == 0) give_up_at = now + timeout_ns_;
    if (now > give_up_at) return Error(Status::timeout, fmt::format("a bare socket: {} took too long", what));
  }
  return {};
}

Result<void> RawSocket::send(const std::byte* from, std::size_t bytes) {
  return move("send", bytes, [&](std::size_t done) {
    return ::send(socket_.get(), from + done, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

Result<void> RawSocket::receive(std::byte* to, std::size_t bytes) {
  return move("receive", bytes,
              [&](std::size_t done) { return ::recv(socket_.get(), to + done, bytes - done, MSG_DONTWAIT); });
}

Result<void> RawSocket::send_slots(const Round& round, std::span<const std::byte> memory) {
  for (std::uint64_t i = 0; i < round.count; ++i) {
    if (auto sent = send(memory.data() + i % round.slots * round.bytes, round.bytes); !sent) return sent;
  }
  std::byte landed{};
  return receive(&landed, 1);
}

/// Slots lie side by side: what has come of several is taken in one call.
Result<void> RawSocket::receive_slots(const Round& round, std::span<std::byte> memory) {
  const std::size_t around = round.slots * round.bytes;
  for (std::uint64_t left = round.count * round.bytes; left > 0;) {
    const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(left, around));
    if (auto received = receive(memory.data(), part); !received) return received;
    left -= part;
  }
  const std::byte landed{};
  return send(&landed, 1);
}

Result<double> RawSocket::run_source(const Round& round) {
  const std::int64_t begin = SteadyClock().now();
  Result<void> done;
  if (round.test == Test::put_signal || round.test == Test::atomic) {
    for (std::uint64_t i = 0; done.ok() && i < round.count; ++i) {
      done = send(buffer_.data(), round.bytes);
      if (done.ok()) done = receive(exposed_.data(), round.bytes);
    }
  } else if (round.test == Test::get) {
    // Nothing is asked for: the target sends all of it.
    const std::byte go{};
    done = send(&go, 1);
    if (done.ok()) done = receive_slots(round, buffer_);
  } else {
    done = send_slots(round, buffer_);
  }
  if (!done) return std::move(done.error());
  return static_cast<double>(SteadyClock().now() - begin) * 1e-9;
}

Result<void> RawSocket::run_target(const Round& round) {
  if (round.test == Test::put_signal || round.test == Test::atomic) {
    for (std::uint64_t i = 0; i < round.count; ++i) {
      if (auto received = receive(exposed_.data(), round.bytes); !received) return received;
      if (auto sent = send(buffer_.data(), round.bytes); !sent) return sent;
    }
    return {};
  }
  if (round.test != Test::get) return receive_slots(round, exposed_);
  std::byte go{};
  if (auto received = receive(&go, 1); !received) return received;
  return send_slots(round, exposed_);
}

}  // namespace railyard::bench
