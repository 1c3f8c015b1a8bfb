#include "message/ip_address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "fabric/interface_filter.hpp"

namespace railyard::message {

namespace {

constexpr std::array<std::byte, 12> kMapped = {std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                               std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                               std::byte{0}, std::byte{0}, std::byte{0xff}, std::byte{0xff}};

/// What others can reach comes first; IPv4 before IPv6, which is more often configured than routed.
int order_of(const IpAddress& address) {
  if (address.link_local()) return address.is_v4() ? 2 : 3;
  return address.is_v4() ? 0 : 1;
}

}  // namespace

std::optional<IpAddress> IpAddress::of(const sockaddr& name) {
  IpAddress address;
  if (name.sa_family == AF_INET) {
    std::ranges::copy(kMapped, address.bytes.begin());
    std::memcpy(address.bytes.data() + kMapped.size(), &reinterpret_cast<const sockaddr_in&>(name).sin_addr, 4);
    return address;
  }
  if (name.sa_family != AF_INET6) return std::nullopt;
  std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in6&>(name).sin6_addr, address.bytes.size());
  return address;
}

bool IpAddress::is_v4() const { return std::equal(kMapped.begin(), kMapped.end(), bytes.begin()); }

bool IpAddress::loopback() const {
  if (is_v4()) return bytes[12] == std::byte{127};
  IpAddress one;
  one.bytes.back() = std::byte{1};
  return *this == one;
}

bool IpAddress::link_local() const {
  if (is_v4()) return bytes[12] == std::byte{169} && bytes[13] == std::byte{254};
  return bytes[0] == std::byte{0xfe} && (bytes[1] & std::byte{0xc0}) == std::byte{0x80};
}

std::string IpAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const char* const result = is_v4() ? inet_ntop(AF_INET, bytes.data() + kMapped.size(), text.data(), text.size())
                                     : inet_ntop(AF_INET6, bytes.data(), text.data(), text.size());
  return result == nullptr ? "?" : result;
}

std::string Target::text(std::uint16_t port) const {
  if (address.is_v4()) return fmt::format("{}:{}", address.text(), port);
  if (scope == 0) return fmt::format("[{}]:{}", address.text(), port);
  std::array<char, IF_NAMESIZE> interface {};
  const bool known = if_indextoname(scope, interface.data()) != nullptr;
  return fmt::format("[{}%{}]:{}", address.text(), known ? interface.data() : std::to_string(scope), port);
}

rendezvous::Endpoint Target::endpoint(std::uint16_t port) const {
  rendezvous::Endpoint endpoint;
  endpoint.text = text(port);
  if (address.is_v4()) {
    endpoint.length = sizeof(sockaddr_in);
    auto& four = reinterpret_cast<sockaddr_in&>(endpoint.name);
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    std::memcpy(&four.sin_addr, address.bytes.data() + kMapped.size(), 4);
    return endpoint;
  }
  endpoint.length = sizeof(sockaddr_in6);
  auto& six = reinterpret_cast<sockaddr_in6&>(endpoint.name);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  six.sin6_scope_id = scope;
  std::memcpy(&six.sin6_addr, address.bytes.data(), address.bytes.size());
  return endpoint;
}

std::vector<InterfaceAddress> list_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const auto address = entry->ifa_addr == nullptr ? std::nullopt : IpAddress::of(*entry->ifa_addr);
    if (!address) continue;
    const bool up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    found.push_back(
        {entry->ifa_name, if_nametoindex(entry->ifa_name), up, (entry->ifa_flags & IFF_LOOPBACK) != 0, *address});
  }
  return found;
}

std::vector<IpAddress> choose_addresses(std::span<const InterfaceAddress> found, std::string_view interfaces,
                                        std::size_t most) {
  const fabric::InterfaceFilter filter(interfaces);
  const auto taken = [&filter](const InterfaceAddress& entry) { return entry.up && filter.takes(entry.interface); };
  const bool all = std::ranges::none_of(found, [&](const InterfaceAddress& entry) {
    return taken(entry) && (!entry.loopback || filter.names(entry.interface));
  });
  std::vector<IpAddress> chosen;
  std::optional<IpAddress> loopback;
  for (const InterfaceAddress& entry : found) {
    if (!entry.up) continue;
    if (entry.loopback) {
      const bool better = entry.address.loopback() && (!loopback || (entry.address.is_v4() && !loopback->is_v4()));
      if (better) loopback = entry.address;
    } else if ((all || taken(entry)) && std::ranges::find(chosen, entry.address) == chosen.end()) {
      chosen.push_back(entry.address);
    }
  }
  std::ranges::stable_sort(chosen, {}, order_of);
  if (chosen.size() > most - (loopback ? 1 : 0)) chosen.resize(most - (loopback ? 1 : 0));
  if (loopback) chosen.push_back(*loopback);
  return chosen;
}

std::vector<Target> order_targets(std::span<const IpAddress> addresses, bool same_machine,
                                  std::span<const InterfaceAddress> found) {
  std::vector<Target> targets;
  for (const IpAddress& address : addresses) {
    if (!address.link_local() || address.is_v4()) {
      targets.push_back({address});
      continue;
    }
    for (const InterfaceAddress& entry : found) {
      if (!entry.up || entry.loopback || !entry.address.link_local() || entry.address.is_v4()) continue;
      targets.push_back({address, entry.index});
    }
  }
  std::stable_partition(targets.begin(), targets.end(),
                        [same_machine](const Target& target) { return target.address.loopback() == same_machine; });
  return targets;
}

}  // namespace railyard::message
