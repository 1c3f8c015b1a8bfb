/// Whether ranks can connect to each other, or a firewall stands between them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "base/fd.hpp"
#include "doctor_checks.hpp"
#include "fabric/tcp/socket.hpp"
#include "text.hpp"

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

using PeerClock = std::chrono::steady_clock;

/// Whether `events` came in time.
bool wait_for(int socket, short events, PeerClock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - PeerClock::now()).count();
  pollfd wait{socket, events, 0};
  return ::poll(&wait, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) > 0;
}

/// 0: connected; else an errno.
int try_to_connect(int socket, const addrinfo& address, PeerClock::time_point end, const PeerWay& way) {
  // As a rail does: where the kernel does not let us, its routes decide.
  if (!way.device.empty()) (void)fabric::tcp::bind_to_device(socket, way.device);
  if (!way.address.empty()) {
    sockaddr_in local{};
    local.sin_family = AF_INET;
    if (::inet_pton(AF_INET, way.address.c_str(), &local.sin_addr) != 1) return EINVAL;
    if (::bind(socket, reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0) return errno;
  }
  if (::connect(socket, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(socket, POLLOUT, end)) return ETIMEDOUT;
  int code = 0;
  socklen_t length = sizeof code;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &length) == 0 ? code : errno;
}

/// Sends so many bytes and waits for the answer. How many the other end's kernel had taken when it gave up; nothing:
/// the answer came.
std::optional<std::size_t> unanswered(int socket, std::size_t bytes, PeerClock::time_point end) {
  const std::vector<char> data(bytes);
  std::size_t sent = 0;
  for (bool waits = true; waits;) {
    const ssize_t count = ::send(socket, data.data() + sent, bytes - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) break;
    if (count > 0) sent += static_cast<std::size_t>(count);
    if (sent == bytes) break;
    waits = wait_for(socket, POLLOUT, end);
  }
  char answer = 0;
  if (sent == bytes && wait_for(socket, POLLIN, end) && ::recv(socket, &answer, 1, 0) == 1) return std::nullopt;
  int underway = 0;  // not acknowledged
  if (::ioctl(socket, SIOCOUTQ, &underway) != 0) underway = 0;
  return sent - std::min(sent, static_cast<std::size_t>(std::max(underway, 0)));
}

/// Of a connection that stands.
Finding judge_bytes(const std::string& where, int socket, std::size_t bytes, PeerClock::time_point end) {
  const auto arrived = bytes == 0 ? std::nullopt : unanswered(socket, bytes, end);
  const std::string size = readable_bytes(static_cast<double>(bytes));
  if (!arrived)
    return {"peer", Verdict::ok, where + " accepts connections" + (bytes == 0 ? "" : fmt::format(", {} arrived", size)),
            "", ""};
  if (*arrived >= bytes)
    return {"peer", Verdict::fail, fmt::format("{} took {} and did not answer", where, size),
            "Its process stands still, or the way back loses packets.", "Try again with a longer --timeout-ms"};
  return {"path-mtu", Verdict::fail,
          fmt::format("{} accepts connections, but of {} sent there {} arrived", where, size,
                      *arrived == 0 ? "nothing" : readable_bytes(static_cast<double>(*arrived))),
          "Short packets get through and long ones vanish: links come up and stand still at the first large message.",
          "Give both NICs and every switch port between them the same MTU"};
}

}  // namespace

Finding check_peer(const std::string& peer, int timeout_ms, const PortRange& ports, const PeerWay& way) {
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
  const auto end = PeerClock::now() + std::chrono::milliseconds(timeout_ms);
  const Fd socket(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int code = !socket ? errno : try_to_connect(socket.get(), *addresses, end, way);
  const std::string where = fmt::format("{} port {}", target.host, target.port);
  if (code == 0) {
    finding = judge_bytes(where, socket.get(), way.bytes, end);
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
