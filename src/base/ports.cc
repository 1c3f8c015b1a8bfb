#include "base/ports.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

namespace railyard {

namespace {

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, failure] = std::from_chars(text.data(), end, port);
  if (failure != std::errc() || stopped != end || port == 0) return std::nullopt;
  return port;
}

in_port_t& port_of(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

std::string text_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bytes = address.ss_family == AF_INET6
                                ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
                                : &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  return ::inet_ntop(address.ss_family, bytes, text.data(), text.size()) == nullptr ? "?" : text.data();
}

/// 0, or why not (errno).
int try_to_listen(int socket, const sockaddr_storage& address, socklen_t length, int backlog) {
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0) return errno;
  return ::listen(socket, backlog) == 0 ? 0 : errno;
}

/// Where this process found its last port. Only a hint: whoever reads an old one begins elsewhere.
std::atomic<std::uint16_t>& port_found() {
  static std::atomic<std::uint16_t> port{0};
  return port;
}

/// Processes of a host begin apart, so that they do not try each other's ports first.
std::uint32_t first_offset(const PortRange& range) {
  const std::uint16_t found = port_found().load(std::memory_order_relaxed);
  if (found >= range.first && found <= range.last) return std::uint32_t{found} - range.first;
  return static_cast<std::uint32_t>(::getpid()) % range.count();
}

Error no_socket() { return Error(Status::io, fmt::format("no socket to listen with: {}", std::strerror(errno))); }

}  // namespace

Result<PortRange> PortRange::parse(std::string_view text) {
  if (text.empty()) return PortRange{};
  const std::size_t dash = text.find('-');
  const auto first = parse_port(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_port(text.substr(dash + 1));
  if (!first || !last || *first > *last)
    return Error(Status::invalid, fmt::format("RAILYARD_PORTS='{}' is not allowed; use first-last, two ports from 1 to "
                                              "65535, the lower one first, as in 50000-50099",
                                              text));
  return PortRange{*first, *last};
}

std::string PortRange::text() const {
  if (any()) return "";
  return first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
}

Result<Fd> listen_within(const PortRange& range, sockaddr_storage& address, socklen_t length, int backlog,
                         const std::function<Fd()>& open) {
  Fd socket = open();
  if (!socket) return no_socket();
  if (range.any()) {
    port_of(address) = 0;
    if (const int error = try_to_listen(socket.get(), address, length, backlog); error != 0)
      return Error(Status::io, fmt::format("cannot listen at {}: {}", text_of(address), std::strerror(error)));
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
      return Error(Status::io, fmt::format("a listening socket has no port: {}", std::strerror(errno)));
    return socket;
  }
  const std::uint32_t offset = first_offset(range);
  for (std::uint32_t i = 0; i < range.count(); ++i) {
    const auto port = static_cast<std::uint16_t>(range.first + (offset + i) % range.count());
    port_of(address) = htons(port);
    // Connections of a process that has ended keep its port for a minute, and need not.
    const int on = 1;
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const int error = try_to_listen(socket.get(), address, length, backlog);
    if (error == 0) {
      port_found().store(port, std::memory_order_relaxed);
      return socket;
    }
    if (error != EADDRINUSE)
      return Error(Status::io, fmt::format("cannot listen at {} port {} (RAILYARD_PORTS={}): {}", text_of(address),
                                           port, range.text(), std::strerror(error)));
    // It may be bound by now: another process was faster between bind and listen.
    socket = open();
    if (!socket) return no_socket();
  }
  return Error(Status::io,
               fmt::format("no port of RAILYARD_PORTS={} is free at {}: all {} are in use. Widen the range: "
                           "each process of a host needs one, and one more for each further rail on the "
                           "same NIC and for its channels (`ss -ltn` shows who has them)",
                           range.text(), text_of(address), range.count()));
}

}  // namespace railyard
