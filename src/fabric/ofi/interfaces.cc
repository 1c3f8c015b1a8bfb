#include "fabric/ofi/interfaces.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <fstream>
#include <memory>

namespace railyard::fabric::ofi {

std::map<std::string, Interface, std::less<>> list_interfaces() {
  std::map<std::string, Interface, std::less<>> interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return interfaces;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    Interface& interface = interfaces[entry->ifa_name];
    interface.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
  }
  return interfaces;
}

double line_rate(const fi_info& info) {
  if (info.nic != nullptr && info.nic->link_attr != nullptr && info.nic->link_attr->speed != 0)
    return static_cast<double>(info.nic->link_attr->speed) / 8;
  if (info.domain_attr->name == nullptr) return 0;
  std::ifstream file(fmt::format("/sys/class/net/{}/speed", info.domain_attr->name));
  double megabits = 0;
  return file >> megabits && megabits > 0 ? megabits * 1e6 / 8 : 0;
}

std::string address_text(const fi_info& info) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const char* result = nullptr;
  if (info.addr_format == FI_SOCKADDR_IN && info.src_addr != nullptr && info.src_addrlen >= sizeof(sockaddr_in))
    result = inet_ntop(AF_INET, &static_cast<const sockaddr_in*>(info.src_addr)->sin_addr, text.data(), text.size());
  if (info.addr_format == FI_SOCKADDR_IN6 && info.src_addr != nullptr && info.src_addrlen >= sizeof(sockaddr_in6))
    result = inet_ntop(AF_INET6, &static_cast<const sockaddr_in6*>(info.src_addr)->sin6_addr, text.data(), text.size());
  return result == nullptr ? std::string() : std::string(result);
}

}  // namespace railyard::fabric::ofi
