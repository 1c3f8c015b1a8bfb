/// Which rails this machine's network interfaces offer.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>

#include "base/identity.hpp"
#include "fabric/interface_filter.hpp"
#include "fabric/tcp/driver.hpp"
#include "fabric/tcp/interface.hpp"

namespace railyard::fabric {

namespace tcp {

namespace {

struct Found {
  Interface interface;
  std::string network;  ///< "192.0.2.0/24"
  int rank = 0;         ///< of its address: lower is better
  bool up = false;
};

/// IPv4 before IPv6; an IPv6 address that is good on its own link only comes last.
int address_rank(const sockaddr& address) {
  if (address.sa_family == AF_INET) return 0;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) ? 2 : 1;
}

std::span<std::byte> address_bytes(Endpoint& endpoint) {
  if (endpoint.family() == AF_INET6) {
    auto& bytes = reinterpret_cast<sockaddr_in6*>(endpoint.get())->sin6_addr;
    return std::as_writable_bytes(std::span(&bytes, 1));
  }
  return std::as_writable_bytes(std::span(&reinterpret_cast<sockaddr_in*>(endpoint.get())->sin_addr, 1));
}

std::string network_of(const sockaddr& address, const sockaddr* mask) {
  Endpoint network = Endpoint::from(address);
  if (mask == nullptr) return network.text();
  Endpoint bits = Endpoint::from(address);
  std::memcpy(bits.get(), mask, bits.length);
  bits.get()->sa_family = address.sa_family;
  const auto kept = address_bytes(bits);
  const auto bytes = address_bytes(network);
  int length = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] &= kept[i];
    length += std::popcount(std::to_integer<unsigned char>(kept[i]));
  }
  return fmt::format("{}/{}", network.text(), length);
}

/// The interfaces with an address, each with its best one, in the kernel's order.
std::vector<Found> find_interfaces() {
  std::vector<Found> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    if (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6) continue;
    Found one;
    one.interface.device = entry->ifa_name;
    one.interface.address = Endpoint::from(*entry->ifa_addr);
    one.interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    one.network = network_of(*entry->ifa_addr, entry->ifa_netmask);
    one.rank = address_rank(*entry->ifa_addr);
    one.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    const auto same =
        std::ranges::find_if(found, [&](const Found& other) { return other.interface.device == one.interface.device; });
    if (same == found.end())
      found.push_back(std::move(one));
    else if (one.rank < same->rank)
      *same = std::move(one);
  }
  return found;
}

double speed_of(const std::string& device) {
  std::ifstream file(fmt::format("/sys/class/net/{}/speed", device));
  double megabits = 0;
  return file >> megabits && megabits > 0 ? megabits * 1e6 / 8 : 0;
}

/// A setting of the interface: the larger of its own and the one for all counts.
int network_setting(const std::string& device, const char* name) {
  int most = 0;
  for (const std::string& which : {std::string("all"), device}) {
    int value = 0;
    std::ifstream(fmt::format("/proc/sys/net/ipv4/conf/{}/{}", which, name)) >> value;
    most = std::max(most, value);
  }
  return most;
}

void mark_crowded(std::vector<Found>& found) {
  for (Found& one : found)
    one.interface.crowded =
        std::ranges::count_if(found, [&](const Found& other) { return other.up && other.network == one.network; }) > 1;
}

RailOffer offer_of(const Found& found) {
  RailOffer offer;
  offer.driver = offer.provider = "tcp";
  offer.domain = found.interface.device;
  offer.fabric = found.network;
  // Every machine has a 127.0.0.1, and every link its fe80::/64: equal names there do not mean that they reach each
  // other.
  if (found.interface.loopback) offer.fabric += "@" + machine_word();
  offer.line_rate = speed_of(found.interface.device);
  offer.loopback = found.interface.loopback;
  offer.device_memory = true;
  offer.detail = found.interface.address.text();
  offer.driver_data = std::make_shared<Interface>(found.interface);
  return offer;
}

Error no_offer(const Settings& settings, const std::vector<Found>& found) {
  std::vector<std::string> names;
  names.reserve(found.size());
  for (const Found& one : found) names.push_back(one.interface.device + (one.up ? "" : " (down)"));
  if (settings.interfaces.empty())
    return Error(Status::not_found, fmt::format("no network interface here is up and has an address: there are {}. "
                                                "Bring one up with `ip link set NAME up`",
                                                fmt::join(names, ", ")));
  return Error(Status::not_found, fmt::format("RAILYARD_INTERFACES={} leaves no rail: there are {}",
                                              settings.interfaces, fmt::join(names, ", ")));
}

}  // namespace

std::string settings_in_the_way(const Interface& interface) {
  if (!interface.crowded || interface.address.family() != AF_INET) return {};
  std::vector<std::string> wrong;
  if (network_setting(interface.device, "arp_ignore") == 0) wrong.emplace_back("net.ipv4.conf.all.arp_ignore=1");
  if (network_setting(interface.device, "arp_announce") != 2) wrong.emplace_back("net.ipv4.conf.all.arp_announce=2");
  if (network_setting(interface.device, "rp_filter") == 1) wrong.emplace_back("net.ipv4.conf.all.rp_filter=2");
  return fmt::format("{}", fmt::join(wrong, " "));
}

}  // namespace tcp

Result<std::vector<RailOffer>> discover_tcp(const Settings& settings) {
  if (!settings.provider.empty() && settings.provider != "tcp")
    return Error(Status::not_found, fmt::format("RAILYARD_PROVIDER={} names a libfabric provider, which the driver tcp "
                                                "does without: leave it out, or set RAILYARD_DRIVER=ofi",
                                                settings.provider));
  auto found = tcp::find_interfaces();
  tcp::mark_crowded(found);
  const InterfaceFilter filter(settings.interfaces);
  std::vector<RailOffer> offers;
  for (const tcp::Found& one : found)
    if (one.up && filter.takes(one.interface.device)) offers.push_back(tcp::offer_of(one));
  if (offers.empty()) return tcp::no_offer(settings, found);
  std::stable_partition(offers.begin(), offers.end(), [](const RailOffer& offer) { return !offer.loopback; });
  return offers;
}

}  // namespace railyard::fabric
