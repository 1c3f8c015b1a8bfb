/// Where ranks meet: host:port, [ipv6]:port, unix:/path or unix:@name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "base/ports.hpp"
#include "railyard/result.hpp"

namespace railyard::bootstrap {

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

/// One attempt, which ends by `deadline_ns` of the steady clock. The socket is non-blocking. `not_found` and `io`
/// errors carry the system's reason alone; the caller says what it tried.
Result<Fd> connect_to(const Address& address, std::int64_t deadline_ns);

}  // namespace railyard::bootstrap
