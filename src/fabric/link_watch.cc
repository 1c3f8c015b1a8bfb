#include "fabric/link_watch.hpp"

#include <fmt/format.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace railyard::fabric {

namespace {

constexpr std::size_t kMessageRoom = 16384;

bool carries(unsigned flags) { return (flags & IFF_UP) != 0 && (flags & IFF_RUNNING) != 0; }

/// The name in a link message; empty where it has none.
std::string name_in(const nlmsghdr& header, const ifinfomsg& link) {
  int rest = static_cast<int>(header.nlmsg_len - NLMSG_LENGTH(sizeof(link)));
  for (const rtattr* attribute = IFLA_RTA(&link); RTA_OK(attribute, rest); attribute = RTA_NEXT(attribute, rest))
    if (attribute->rta_type == IFLA_IFNAME) {
      const auto* const text = static_cast<const char*>(RTA_DATA(attribute));
      return {text, ::strnlen(text, RTA_PAYLOAD(attribute))};
    }
  return {};
}

}  // namespace

Result<LinkWatch> LinkWatch::open(std::string interface) {
  LinkWatch watch;
  watch.interface_ = std::move(interface);
  watch.socket_ = Fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  if (!watch.socket_ || ::bind(watch.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return Error(Status::io, fmt::format("the state of interface {} cannot be watched: {}", watch.interface_,
                                         std::strerror(errno)));
  // Asked after the subscription: a change in between is told twice, never missed.
  watch.usable_ = watch.ask();
  return watch;
}

bool LinkWatch::ask() const {
  const Fd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  interface_.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  return any && ::ioctl(any.get(), SIOCGIFFLAGS, &request) == 0 &&
         carries(static_cast<unsigned short>(request.ifr_flags));
}

std::optional<bool> LinkWatch::changed() {
  alignas(nlmsghdr) std::array<char, kMessageRoom>
      room;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
  bool usable = usable_;
  for (;;) {
    const ssize_t bytes = ::recv(socket_.get(), room.data(), room.size(), 0);
    if (bytes < 0 && errno == ENOBUFS) {  // messages were dropped: what counts is how it is now
      usable = ask();
      continue;
    }
    if (bytes <= 0) break;
    auto rest = static_cast<std::size_t>(bytes);
    for (const auto* header = reinterpret_cast<const nlmsghdr*>(room.data()); NLMSG_OK(header, rest);
         header = NLMSG_NEXT(header, rest)) {
      if (header->nlmsg_type != RTM_NEWLINK && header->nlmsg_type != RTM_DELLINK) continue;
      const auto& link = *static_cast<const ifinfomsg*>(NLMSG_DATA(header));
      if (name_in(*header, link) != interface_) continue;
      usable = header->nlmsg_type == RTM_NEWLINK && carries(link.ifi_flags);
    }
  }
  if (usable == usable_) return std::nullopt;
  usable_ = usable;
  return usable;
}

}  // namespace railyard::fabric
