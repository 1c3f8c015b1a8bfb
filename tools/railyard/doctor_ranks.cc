/// Between the ranks of a world: every rank tries to reach every other by each of its rails' NICs, and compares what
/// must be alike on both ends.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/bytes.hpp"
#include "base/fd.hpp"
#include "base/ports.hpp"
#include "bootstrap/open.hpp"
#include "doctor_checks.hpp"
#include "fabric/interface_filter.hpp"

namespace railyard::tool {

namespace {

constexpr std::uint16_t kMostNics = 256;

/// A NIC with an IPv4 address that rails may use.
struct NicAddress {
  std::string name;
  std::uint32_t address = 0;  ///< in the order of the host
  std::uint32_t mask = 0;
  std::uint32_t mtu = 0;  ///< 0: unknown
  bool loopback = false;

  std::string text() const {
    const in_addr raw{htonl(address)};
    std::array<char, INET_ADDRSTRLEN> out{};
    return ::inet_ntop(AF_INET, &raw, out.data(), out.size()) != nullptr ? out.data() : "?";
  }
};

/// What a rank tells the others.
struct Offer {
  std::string host;
  std::uint16_t port = 0;  ///< 0: it cannot listen
  std::vector<NicAddress> nics;
};

/// Of this network namespace, which what is mounted at /sys may not be.
std::uint32_t mtu_of(const char* name) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  if (!socket || std::strlen(name) >= sizeof request.ifr_name) return 0;
  std::memcpy(request.ifr_name, name, std::strlen(name));
  return ::ioctl(socket.get(), SIOCGIFMTU, &request) == 0 ? static_cast<std::uint32_t>(request.ifr_mtu) : 0;
}

/// Loopback only where it is asked for or all that there is.
std::vector<NicAddress> own_nics(const Settings& settings) {
  const fabric::InterfaceFilter filter(settings.interfaces);
  std::vector<NicAddress> nics;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return nics;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(list, &::freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_netmask == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || !filter.takes(one->ifa_name)) continue;
    const auto word = [](const sockaddr* of) {
      return ntohl(reinterpret_cast<const sockaddr_in*>(of)->sin_addr.s_addr);
    };
    const std::string name = one->ifa_name;
    nics.push_back({name, word(one->ifa_addr), word(one->ifa_netmask), mtu_of(one->ifa_name),
                    (one->ifa_flags & IFF_LOOPBACK) != 0});
  }
  const bool others = std::ranges::any_of(nics, [](const NicAddress& nic) { return !nic.loopback; });
  std::erase_if(nics, [&](const NicAddress& nic) { return nic.loopback && others && !filter.names(nic.name); });
  if (nics.size() > kMostNics) nics.resize(kMostNics);
  return nics;
}

/// At a port of RAILYARD_PORTS, so that what the firewall lets through is what is tried.
Result<Fd> listen_for_peers(const PortRange& ports, std::uint16_t& port) {
  constexpr int kBacklog = 1024;
  sockaddr_storage name{};
  name.ss_family = AF_INET;
  auto socket = listen_within(ports, name, sizeof(sockaddr_in), kBacklog,
                              [] { return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); });
  if (socket) port = ntohs(reinterpret_cast<const sockaddr_in&>(name).sin_port);
  return socket;
}

std::vector<std::byte> write_nics(const Offer& offer) {
  ByteWriter out;
  out.text(offer.host);
  out.u16(offer.port);
  out.u16(static_cast<std::uint16_t>(offer.nics.size()));
  for (const NicAddress& nic : offer.nics) {
    out.text(nic.name);
    out.u32(nic.address);
    out.u32(nic.mask);
    out.u32(nic.mtu);
    out.u8(nic.loopback ? 1 : 0);
  }
  return out.take();
}

std::optional<Offer> read_nics(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  Offer offer;
  offer.host = in.text();
  offer.port = in.u16();
  const std::uint16_t count = in.u16();
  if (count > kMostNics) in.fail();
  for (std::uint16_t i = 0; i < count && in.ok(); ++i) {
    NicAddress nic;
    nic.name = in.text();
    nic.address = in.u32();
    nic.mask = in.u32();
    nic.mtu = in.u32();
    nic.loopback = in.u8() != 0;
    offer.nics.push_back(std::move(nic));
  }
  return in.done() ? std::optional(std::move(offer)) : std::nullopt;
}

/// The NIC of ours in the peer's subnet, by which a rail to it leaves; null: a router is between them.
const NicAddress* neighbour_of(const std::vector<NicAddress>& mine, const NicAddress& peer) {
  const auto same = [&](const NicAddress& nic) {
    return nic.loopback == peer.loopback && nic.mask != 0 && (nic.address & nic.mask) == (peer.address & nic.mask);
  };
  // Several NICs in one subnet: the one of the same name first, as rails pair them.
  const auto named =
      std::ranges::find_if(mine, [&](const NicAddress& nic) { return same(nic) && nic.name == peer.name; });
  const auto found = named != mine.end() ? named : std::ranges::find_if(mine, same);
  return found == mine.end() ? nullptr : &*found;
}

void check_rank(std::size_t rank, const Offer& mine, const Offer& theirs, int timeout_ms, const PortRange& ports,
                Findings& out) {
  if (theirs.nics.empty()) {
    out.push_back({"peer", Verdict::fail,
                   fmt::format("rank {} ({}) has no NIC with an IPv4 address", rank, theirs.host),
                   "No tcp rail reaches it.", "Give a NIC there an address; look at RAILYARD_INTERFACES there"});
  }
  for (const NicAddress& nic : theirs.nics) {
    const NicAddress* const own = neighbour_of(mine.nics, nic);
    const std::string way = own == nullptr ? "" : fmt::format(" from {}", own->name);
    Finding finding =
        check_peer(fmt::format("{}:{}", nic.text(), theirs.port), timeout_ms, ports, own == nullptr ? "" : own->text());
    finding.found = fmt::format("rank {}: {}{}: {}", rank, nic.name, way, finding.found);
    out.push_back(std::move(finding));
    if (own == nullptr || own->mtu == 0 || nic.mtu == 0 || own->mtu == nic.mtu) continue;
    const bool smaller_here = own->mtu < nic.mtu;
    out.push_back(
        {"mtu", Verdict::warn,
         fmt::format("rank {}: {} has an MTU of {}, {} here {}", rank, nic.name, nic.mtu, own->name, own->mtu),
         "The two ends of a rail differ: long packets of the one vanish, or the rail is as slow as the other.",
         fmt::format("ip link set {} mtu {}{}", smaller_here ? own->name : nic.name, std::max(own->mtu, nic.mtu),
                     smaller_here ? "" : " on its host")});
  }
}

}  // namespace

Result<void> check_ranks(const HostFiles& host, const Settings& settings, int timeout_ms, Findings& out) {
  auto bootstrap = open_bootstrap(settings);
  if (!bootstrap) return std::move(bootstrap.error());
  auto ports = PortRange::parse(settings.ports);
  if (!ports) return std::move(ports.error());
  Offer mine{host.read("proc/sys/kernel/hostname").value_or("?"), 0, own_nics(settings)};
  const auto socket = listen_for_peers(*ports, mine.port);
  if (!socket) {
    out.push_back({"ports", Verdict::fail, socket.error().message(), "Peers cannot connect to this rank.", ""});
  }
  auto all = (*bootstrap)->allgather(write_nics(mine), {});
  if (!all) return std::move(all.error());
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    const auto theirs = read_nics((*all)[rank]);
    if (static_cast<int>(rank) == (*bootstrap)->rank() || !theirs || theirs->port == 0) continue;
    check_rank(rank, mine, *theirs, timeout_ms, *ports, out);
  }
  // Nobody closes its socket before all have tried.
  return (*bootstrap)->barrier({});
}

}  // namespace railyard::tool
