#include "rendezvous/address.hpp"

#include <arpa/inet.h>
#include <errno.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <vector>

namespace railyard::rendezvous {

namespace {

constexpr std::size_t kMostPath = sizeof(sockaddr_un::sun_path) - 1;

Error system_error(std::string_view what, int code) {
  return Error(Status::io, fmt::format("{}: {}", what, std::strerror(code)));
}

Error not_an_address(std::string_view text, std::string_view why) {
  return Error(Status::invalid,
               fmt::format("'{}' is no address to meet at: {}; use host:port, [ipv6]:port, unix:/path or unix:@name",
                           text, why));
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress unix_address(const Address& address) {
  SocketAddress result;
  auto* name = reinterpret_cast<sockaddr_un*>(&result.storage);
  name->sun_family = AF_UNIX;
  const std::size_t skip = address.kind == Address::Kind::unix_abstract ? 1 : 0;
  std::memcpy(name->sun_path + skip, address.path.data(), address.path.size());
  // An abstract name has no end mark; a path has one.
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.path.size() + 1);
  return result;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> look_up(const char* host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    return Error(Status::not_found, fmt::format("no such host '{}': {}", host == nullptr ? "" : host,
                                                failure == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(failure)));
  }
  return AddressList(found, &freeaddrinfo);
}

bool is_numeric(const std::string& host) {
  in_addr four{};
  in6_addr six{};
  return inet_pton(AF_INET, host.c_str(), &four) == 1 || inet_pton(AF_INET6, host.c_str(), &six) == 1;
}

void set_option(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

Result<Fd> listen_tcp(const Address& address, int backlog, const PortRange& ports) {
  // A host's own name often resolves to 127.0.1.1 on that host, where nobody else could reach it: for a name, listen on
  // every interface. Unauthenticated peers are kept out by the job key.
  const bool exact = is_numeric(address.host) || address.host == "localhost";
  auto list = look_up(exact ? address.host.c_str() : nullptr, address.port, exact ? 0 : AI_PASSIVE);
  if (!list) return std::move(list.error());
  std::vector<const addrinfo*> entries;
  for (const addrinfo* entry = list->get(); entry != nullptr; entry = entry->ai_next) entries.push_back(entry);
  // The IPv6 wildcard takes IPv4 connections too.
  if (!exact)
    std::stable_partition(entries.begin(), entries.end(),
                          [](const addrinfo* entry) { return entry->ai_family == AF_INET6; });
  int code = EADDRNOTAVAIL;
  for (const addrinfo* entry : entries) {
    const auto open = [&] {
      Fd socket(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (socket) set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (socket && entry->ai_family == AF_INET6 && !exact) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
      return socket;
    };
    if (address.port == 0 && !ports.any()) {
      sockaddr_storage where{};
      std::memcpy(&where, entry->ai_addr, entry->ai_addrlen);
      auto socket = listen_within(ports, where, entry->ai_addrlen, backlog, open);
      // Without IPv6 in this kernel, the next entry may do.
      if (socket || entry == entries.back()) return socket;
      continue;
    }
    Fd socket = open();
    if (socket && bind(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0 && ::listen(socket.get(), backlog) == 0) {
      return socket;
    }
    code = errno;
  }
  return system_error(fmt::format("cannot listen on {}", address.text()), code);
}

/// Whether the file in the way is a socket that a process left behind when it died. Nothing else may be removed.
bool is_abandoned(const std::string& path, const SocketAddress& name) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0 || !S_ISSOCK(file.st_mode)) return false;
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return probe && ::connect(probe.get(), name.get(), name.length) != 0 && errno == ECONNREFUSED;
}

Result<Fd> listen_unix(const Address& address, int backlog) {
  const SocketAddress name = unix_address(address);
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return system_error("cannot make a socket", errno);
  // Before bind, so that the file is private from the start.
  if (address.kind == Address::Kind::unix_path) fchmod(socket.get(), S_IRUSR | S_IWUSR);
  int bound = bind(socket.get(), name.get(), name.length);
  if (bound != 0 && errno == EADDRINUSE && address.kind == Address::Kind::unix_path) {
    if (is_abandoned(address.path, name) && unlink(address.path.c_str()) == 0) {
      bound = bind(socket.get(), name.get(), name.length);
    } else {
      errno = EADDRINUSE;
    }
  }
  if (bound != 0 || ::listen(socket.get(), backlog) != 0) {
    return system_error(fmt::format("cannot listen on {}", address.text()), errno);
  }
  return socket;
}

/// The port the system picked for port 0.
std::uint16_t bound_port(const Fd& socket) {
  SocketAddress name;
  name.length = sizeof(name.storage);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name.storage), &name.length);
  return ntohs(name.storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name.storage)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(&name.storage)->sin_port);
}

}  // namespace

Result<Address> Address::parse(std::string_view text) {
  Address address;
  if (text.starts_with("unix:")) {
    std::string_view path = text.substr(5);
    address.kind = path.starts_with('@') ? Kind::unix_abstract : Kind::unix_path;
    if (address.kind == Kind::unix_abstract) path.remove_prefix(1);
    if (path.empty()) return not_an_address(text, "the path is empty");
    if (path.size() >= kMostPath) {
      return not_an_address(
          text, fmt::format("a path has at most {} characters, this one has {}", kMostPath - 1, path.size()));
    }
    if (path.find('\0') != std::string_view::npos) return not_an_address(text, "the path contains a zero byte");
    address.path = path;
    return address;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return not_an_address(text, "the port is missing");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return not_an_address(text, "an IPv6 address needs brackets");
  }
  if (host.empty()) return not_an_address(text, "the host is missing");
  const auto [stopped, failure] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (failure != std::errc() || stopped != port.data() + port.size()) {
    return not_an_address(text, "the port is no number from 0 to 65535");
  }
  address.host = host;
  return address;
}

std::string Address::text() const {
  switch (kind) {
    case Kind::unix_path:
      return "unix:" + path;
    case Kind::unix_abstract:
      return "unix:@" + path;
    case Kind::tcp:
      break;
  }
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

Result<Listener> listen_at(const Address& address, int backlog, const PortRange& ports) {
  Listener listener{Fd(), address};
  auto socket =
      address.kind == Address::Kind::tcp ? listen_tcp(address, backlog, ports) : listen_unix(address, backlog);
  if (!socket) return std::move(socket.error());
  listener.socket = std::move(*socket);
  if (address.kind == Address::Kind::tcp) listener.address.port = bound_port(listener.socket);
  return listener;
}

void tune_tcp(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Result<std::vector<Endpoint>> resolve(const Address& address) {
  if (address.kind != Address::Kind::tcp) {
    const SocketAddress name = unix_address(address);
    return std::vector<Endpoint>{{name.storage, name.length, address.text()}};
  }
  auto list = look_up(address.host.c_str(), address.port, 0);
  if (!list) return std::move(list.error());
  std::vector<Endpoint> endpoints;
  for (const addrinfo* entry = list->get(); entry != nullptr; entry = entry->ai_next) {
    Endpoint& endpoint = endpoints.emplace_back();
    std::memcpy(&endpoint.name, entry->ai_addr, entry->ai_addrlen);
    endpoint.length = entry->ai_addrlen;
    endpoint.text = address.text();
  }
  return endpoints;
}

Connecting start_connecting(const Endpoint& endpoint) {
  Fd socket(::socket(endpoint.name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {Fd(), errno};
  const auto* const name = reinterpret_cast<const sockaddr*>(&endpoint.name);
  // EINTR goes on by itself, as after EINPROGRESS. A Unix socket says EAGAIN when the listener's queue is full: nothing
  // is under way then.
  if (::connect(socket.get(), name, endpoint.length) != 0 && errno != EINPROGRESS && errno != EINTR) {
    return {Fd(), errno};
  }
  tune_tcp(socket.get());
  return {std::move(socket), 0};
}

}  // namespace railyard::rendezvous
