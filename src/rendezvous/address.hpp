/// Where processes meet: host:port, [ipv6]:port, unix:/path or unix:@name; and the addresses to try that come of it.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/ports.hpp"
#include "railyard/result.hpp"

namespace railyard::rendezvous {

struct Address {
  enum class Kind : std::uint8_t {
    tcp,
    unix_path,      ///< reaches across network namespaces
    unix_abstract,  ///< leaves no file behind; reaches only its own network namespace
  };

  Kind kind = Kind::tcp;
  std::string host;  ///< of tcp
  std::uint16_t port = 0;
  std::string path;  ///< of unix, without the @

  /// Port 0 is for listening: the system picks one.
  static Result<Address> parse(std::string_view text);
  /// As `parse` takes it.
  std::string text() const;
  bool operator==(const Address&) const = default;
};

/// A listening socket, and where it listens (the port the system picked). Non-blocking.
struct Listener {
  Fd socket;
  Address address;
};
/// `ports`: where the system picks it from.
Result<Listener> listen_at(const Address& address, int backlog, const PortRange& ports = {});

/// Small messages that wait for an answer: nothing to gather them with. Probes find a peer whose machine vanished. No
/// effect on a Unix socket.
void tune_tcp(int socket);

/// An address to connect to, as the system takes it, and its text.
struct Endpoint {
  sockaddr_storage name{};
  socklen_t length = 0;
  std::string text;
};
/// Every endpoint that the address stands for. Asks the resolver, which may take its time.
Result<std::vector<Endpoint>> resolve(const Address& address);

/// A non-blocking socket whose connection is under way or stands. An `io` error carries the system's number.
struct Connecting {
  Fd socket;
  int code = 0;  ///< of the system, where there is no socket
};
Connecting start_connecting(const Endpoint& endpoint);

}  // namespace railyard::rendezvous
