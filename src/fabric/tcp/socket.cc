#include "fabric/tcp/socket.hpp"

#include <fmt/format.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace railyard::fabric::tcp {

namespace {

constexpr int kKeepAliveSeconds = 1;
constexpr int kKeepAliveProbes = 30;         ///< as long as a peer is given before it is lost
constexpr std::uint32_t kRecentlyMs = 3000;  ///< a keep-alive and two more may get lost

void set_option(int socket, int level, int name, int value) {
  // Each of them makes things better; none is needed for them to be right.
  (void)::setsockopt(socket, level, name, &value, sizeof value);
}

bool set_congestion(int socket, const std::string& name) {
  return ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

/// The names in a file of the kernel's.
std::string names_in(const char* path) {
  std::ifstream file(path);
  std::string names;
  std::getline(file, names);
  return names.empty() ? "unknown" : names;
}

/// A question to rtnetlink, put together in place.
struct RouteRequest {
  alignas(nlmsghdr) std::array<char, 256> bytes{};
  std::size_t length = NLMSG_LENGTH(sizeof(rtmsg));

  nlmsghdr& header() { return *reinterpret_cast<nlmsghdr*>(bytes.data()); }
  rtmsg& message() { return *reinterpret_cast<rtmsg*>(bytes.data() + NLMSG_HDRLEN); }
  void add(unsigned short type, const void* data, std::size_t count) {
    rtattr attribute{};
    attribute.rta_type = type;
    attribute.rta_len = static_cast<unsigned short>(RTA_LENGTH(count));
    std::memcpy(bytes.data() + length, &attribute, sizeof attribute);
    std::memcpy(bytes.data() + length + RTA_LENGTH(0), data, count);
    length += RTA_ALIGN(attribute.rta_len);
  }
};

void add_address(RouteRequest& request, unsigned short type, const Endpoint& endpoint) {
  if (endpoint.family() == AF_INET6)
    request.add(type, &reinterpret_cast<const sockaddr_in6*>(endpoint.get())->sin6_addr, sizeof(in6_addr));
  else
    request.add(type, &reinterpret_cast<const sockaddr_in*>(endpoint.get())->sin_addr, sizeof(in_addr));
}

}  // namespace

Fd open_socket(const Endpoint& address) {
  return Fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

void tune(int socket, const SocketOptions& options, std::uint8_t traffic_class) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(options.unsent));
  mark_packets(socket, traffic_class == 0 ? options.traffic_class : traffic_class);
  if (options.pacing != 0)
    (void)::setsockopt(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &options.pacing, sizeof options.pacing);
  // That the kernel has it was seen when the rail opened.
  if (!options.congestion.empty()) (void)set_congestion(socket, options.congestion);
  // No TCP_USER_TIMEOUT: it would also end the connection to a process that is alive but does not read for so long.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
}

void mark_packets(int socket, std::uint8_t traffic_class) {
  // Priorities above 6 need CAP_NET_ADMIN. The kernel's own table of classes knows nothing of DSCP, so this comes last.
  constexpr int kMostPriority = 6;
  constexpr unsigned kPrecedenceShift = 5;
  if (traffic_class == 0) return;
  set_option(socket, IPPROTO_IP, IP_TOS, traffic_class);
  set_option(socket, IPPROTO_IPV6, IPV6_TCLASS, traffic_class);  // each fails on a socket of the other version
  set_option(socket, SOL_SOCKET, SO_PRIORITY, std::min(traffic_class >> kPrecedenceShift, kMostPriority));
}

Result<void> use_congestion_control(int socket, const std::string& name) {
  if (set_congestion(socket, name)) return {};
  if (errno == EPERM)
    return Error(Status::invalid,
                 fmt::format("RAILYARD_CONGESTION={}: only root may use it here. Others may use: {}. `sysctl -w "
                             "net.ipv4.tcp_allowed_congestion_control='... {}'` allows it",
                             name, names_in("/proc/sys/net/ipv4/tcp_allowed_congestion_control"), name));
  if (errno != ENOENT) return Error(Status::io, fmt::format("RAILYARD_CONGESTION={}: {}", name, std::strerror(errno)));
  return Error(Status::invalid,
               fmt::format("RAILYARD_CONGESTION={}: this kernel has no such congestion control. It "
                           "has: {}. `modprobe tcp_{}` may bring it",
                           name, names_in("/proc/sys/net/ipv4/tcp_available_congestion_control"), name));
}

bool bind_to_device(int socket, const std::string& device) {
  return ::setsockopt(socket, SOL_SOCKET, SO_BINDTODEVICE, device.c_str(), static_cast<socklen_t>(device.size() + 1)) ==
         0;
}

Fd listen_beside(int bound, const Endpoint& address, int backlog) {
  Fd beside = open_socket(address);
  if (!beside) return {};
  // Two sockets share a port only while both say so. Nobody else may: the port was taken without that, and afterwards
  // neither says so any longer.
  for (const int socket : {bound, beside.get()}) set_option(socket, SOL_SOCKET, SO_REUSEPORT, 1);
  int device = -1;
  socklen_t length = sizeof device;
  // An address of the link alone binds to its device by itself: two such listeners would share what arrives there.
  const bool listens = ::bind(beside.get(), address.get(), address.length) == 0 &&
                       ::getsockopt(beside.get(), SOL_SOCKET, SO_BINDTOIFINDEX, &device, &length) == 0 && device == 0 &&
                       ::listen(beside.get(), backlog) == 0;
  for (const int socket : {bound, beside.get()}) set_option(socket, SOL_SOCKET, SO_REUSEPORT, 0);
  return listens ? std::move(beside) : Fd();
}

bool still_bound(int socket, const std::string& device) {
  int index = 0;
  socklen_t length = sizeof index;
  // A kernel that cannot say (before 5.1) is taken at its word.
  if (::getsockopt(socket, SOL_SOCKET, SO_BINDTOIFINDEX, &index, &length) != 0) return true;
  return static_cast<unsigned>(index) == ::if_nametoindex(device.c_str());
}

std::optional<std::string> device_of_route(const Endpoint& source, const Endpoint& target) {
  const Fd netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!netlink) return std::nullopt;
  RouteRequest request;
  request.header().nlmsg_type = RTM_GETROUTE;
  request.header().nlmsg_flags = NLM_F_REQUEST;
  request.message().rtm_family = static_cast<unsigned char>(target.family());
  const auto bits = static_cast<unsigned char>(target.family() == AF_INET6 ? 128 : 32);
  request.message().rtm_dst_len = request.message().rtm_src_len = bits;
  add_address(request, RTA_DST, target);
  add_address(request, RTA_SRC, source);
  request.header().nlmsg_len = static_cast<std::uint32_t>(request.length);
  if (::send(netlink.get(), request.bytes.data(), request.length, 0) < 0) return std::nullopt;
  alignas(nlmsghdr) std::array<char, 4096> answer{};
  const ssize_t bytes = ::recv(netlink.get(), answer.data(), answer.size(), 0);
  const auto* const header = reinterpret_cast<const nlmsghdr*>(answer.data());
  if (bytes < 0 || !NLMSG_OK(header, static_cast<std::size_t>(bytes)) || header->nlmsg_type != RTM_NEWROUTE)
    return std::nullopt;
  const auto* const route = static_cast<const rtmsg*>(NLMSG_DATA(header));
  int rest = static_cast<int>(header->nlmsg_len - NLMSG_LENGTH(sizeof(rtmsg)));
  for (const rtattr* attribute = RTM_RTA(route); RTA_OK(attribute, rest); attribute = RTA_NEXT(attribute, rest)) {
    if (attribute->rta_type != RTA_OIF || RTA_PAYLOAD(attribute) < sizeof(unsigned)) continue;
    unsigned index = 0;
    std::memcpy(&index, RTA_DATA(attribute), sizeof index);
    std::array<char, IF_NAMESIZE> name{};
    if (::if_indextoname(index, name.data()) != nullptr) return std::string(name.data());
  }
  return std::nullopt;
}

void acknowledge_later(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_QUICKACK, 1);
  set_option(socket, IPPROTO_TCP, TCP_QUICKACK, 0);
}

bool answered_lately(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  return info.tcpi_state == TCP_ESTABLISHED &&
         (info.tcpi_last_ack_recv < kRecentlyMs || info.tcpi_last_data_recv < kRecentlyMs);
}

}  // namespace railyard::fabric::tcp
