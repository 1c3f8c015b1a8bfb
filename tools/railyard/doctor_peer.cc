/// Whether ranks can connect to each other, or a firewall stands between them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/fd.hpp"
#include "doctor_checks.hpp"

namespace railyard::tool {

namespace {

/// In the range from which kernels give ports to sockets that do not choose one, as rails do.
constexpr const char* kAnyRailPort = "45000";

struct Target {
  std::string host;
  std::string port;
  bool named = false;  ///< somebody is said to listen there
};

Target parse_peer(const std::string& peer, const PortRange& ports) {
  const std::size_t bracket = peer.find(']');
  const std::size_t colon = peer.rfind(':');
  const bool has_port =
      colon != std::string::npos && (bracket == std::string::npos ? peer.find(':') == colon : colon > bracket);
  const std::string any = ports.any() ? kAnyRailPort : std::to_string(ports.last);
  Target target{has_port ? peer.substr(0, colon) : peer, has_port ? peer.substr(colon + 1) : any, has_port};
  if (target.host.starts_with('[') && target.host.ends_with(']'))
    target.host = target.host.substr(1, target.host.size() - 2);
  return target;
}

/// 0: connected; else an errno.
int try_to_connect(const addrinfo& address, int timeout_ms, const std::string& from) {
  const Fd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno;
  if (!from.empty()) {
    sockaddr_in local{};
    local.sin_family = AF_INET;
    if (::inet_pton(AF_INET, from.c_str(), &local.sin_addr) != 1) return EINVAL;
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0) return errno;
  }
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{socket.get(), POLLOUT, 0};
  if (::poll(&wait, 1, timeout_ms) <= 0) return ETIMEDOUT;
  int code = 0;
  socklen_t length = sizeof code;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &length) == 0 ? code : errno;
}

}  // namespace

Finding check_peer(const std::string& peer, int timeout_ms, const PortRange& ports, const std::string& from) {
  const Target target = parse_peer(peer, ports);
  Finding finding{"peer", Verdict::ok, "", "", ""};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = ::getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &list); code != 0) {
    return {"peer", Verdict::fail, fmt::format("{}: {}", peer, gai_strerror(code)), "Its name leads nowhere from here.",
            "Use an address, or put the name into DNS or /etc/hosts of every host"};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(list, &::freeaddrinfo);
  const int code = try_to_connect(*addresses, timeout_ms, from);
  const std::string where = fmt::format("{} port {}", target.host, target.port);
  if (code == 0) {
    finding.found = where + " accepts connections";
  } else if (code == ECONNREFUSED && !target.named) {
    finding.found = where + " is let through (nobody listens there, as is to be expected)";
  } else if (code == ECONNREFUSED) {
    finding = {"peer", Verdict::fail, where + ": nobody listens there",
               "The host answers; the process is missing there.",
               "Start rank 0 first, and check RAILYARD_RENDEZVOUS; a firewall that rejects looks the same"};
  } else {
    finding = {"peer", Verdict::fail, fmt::format("{}: {}", where, std::strerror(code)),
               "Ranks there and here cannot connect: a firewall drops it, or there is no route.",
               fmt::format("Open TCP ports {} and that of RAILYARD_RENDEZVOUS between the hosts, both ways",
                           ports.any() ? "32768-60999 (net.ipv4.ip_local_port_range, or those of RAILYARD_PORTS)"
                                       : ports.text() + " (RAILYARD_PORTS)")};
  }
  return finding;
}

}  // namespace railyard::tool
