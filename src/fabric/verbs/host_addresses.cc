#include "fabric/verbs/host_addresses.hpp"

#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "fabric/verbs/port.hpp"

namespace railyard::fabric::verbs {

namespace {

constexpr std::size_t kIpoibBytes = 20;

using HardwareAddresses = std::map<std::string, std::vector<std::uint8_t>>;

/// Those of InfiniBand are longer than the structure says.
HardwareAddresses hardware_addresses(const ifaddrs* list) {
  HardwareAddresses found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_PACKET) continue;
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(one->ifa_addr);
    const std::size_t length = std::min<std::size_t>(bytes[offsetof(sockaddr_ll, sll_halen)], kIpoibBytes);
    const std::uint8_t* const first = bytes + offsetof(sockaddr_ll, sll_addr);
    found[one->ifa_name].assign(first, first + length);
  }
  return found;
}

/// How far from the port; 0: its own.
int distance(const HostAddress& address, const ibv_gid& port) {
  if (address.hardware.size() != kIpoibBytes) return 2;
  return std::memcmp(address.hardware.data() + kIpoibBytes - sizeof port.raw, port.raw, sizeof port.raw) == 0 ? 0 : 1;
}

}  // namespace

std::vector<HostAddress> list_host_addresses() {
  std::vector<HostAddress> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  const auto hardware = hardware_addresses(list);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    HostAddress address;
    if (one->ifa_addr->sa_family == AF_INET) {
      address.ip.raw[10] = address.ip.raw[11] = 0xff;
      std::memcpy(address.ip.raw + 12, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, sizeof(in_addr));
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(address.ip.raw, &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr, sizeof(in6_addr));
    } else {
      continue;
    }
    address.up = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_RUNNING) != 0;
    address.loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
    if (const auto known = hardware.find(one->ifa_name); known != hardware.end()) address.hardware = known->second;
    found.push_back(std::move(address));
  }
  return found;
}

std::vector<ibv_gid> choose_host_addresses(std::span<const HostAddress> found, const ibv_gid& port, std::size_t most) {
  std::vector<HostAddress> usable;
  std::ranges::copy_if(found, std::back_inserter(usable),
                       [](const HostAddress& one) { return one.up && !is_link_local(one.ip); });
  const bool alone = std::ranges::all_of(usable, &HostAddress::loopback);
  if (!alone) std::erase_if(usable, [](const HostAddress& one) { return one.loopback; });
  std::ranges::stable_sort(usable, {}, [&](const HostAddress& one) { return distance(one, port); });
  std::vector<ibv_gid> chosen;
  for (const HostAddress& one : usable)
    if (chosen.size() < most) chosen.push_back(one.ip);
  return chosen;
}

}  // namespace railyard::fabric::verbs
