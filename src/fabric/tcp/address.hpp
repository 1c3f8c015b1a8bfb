/// Where a tcp rail listens, who it is, and the secret that admits to it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "fabric/secret.hpp"
#include "railyard/result.hpp"

namespace railyard::fabric::tcp {

/// A rail's identity: random, so that a rail that reuses the port of another is not mistaken for it.
using RailName = std::array<std::byte, 16>;

/// An IPv4 or IPv6 socket address.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;

  static Endpoint from(const sockaddr& address);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  void set_port(std::uint16_t port);
  /// An IPv6 address that is good on its own link only names the interface that it is reached by, which is `own`'s:
  /// that of the peer has another number.
  void reach_from(const Endpoint& own);
  /// "192.0.2.2" or "fd00::2", without the port.
  std::string text() const;
  /// "192.0.2.2 port 4711"
  std::string text_with_port() const;
  std::span<const std::byte> bytes() const { return {reinterpret_cast<const std::byte*>(&storage), length}; }
};

struct TcpRailAddress {
  RailName name{};
  Secret secret{};
  Endpoint endpoint;

  std::vector<std::byte> pack() const;
  static Result<TcpRailAddress> parse(std::span<const std::byte> bytes, const std::string& rail);
};

}  // namespace railyard::fabric::tcp
