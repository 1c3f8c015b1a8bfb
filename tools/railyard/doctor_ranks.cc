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
#include <span>

#include "base/bytes.hpp"
#include "base/fd.hpp"
#include "base/ports.hpp"
#include "bootstrap/open.hpp"
#include "doctor_answers.hpp"
#include "doctor_checks.hpp"
#include "fabric/interface_filter.hpp"
#include "fabric/rail.hpp"
#include "fabric/tcp/socket.hpp"

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
  std::uint16_t port = 0;  ///< where the rank listens on it; 0: it cannot

  std::string text() const {
    const in_addr raw{htonl(address)};
    std::array<char, INET_ADDRSTRLEN> out{};
    return ::inet_ntop(AF_INET, &raw, out.data(), out.size()) != nullptr ? out.data() : "?";
  }
};

/// What a rank tells the others.
struct Offer {
  std::string host;
  bool sockets = true;  ///< its rails need the kernel's network; false: they are verbs, which `rdma-peer` looks at
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

/// On each NIC by itself, bound to it where the kernel lets us, as rails listen; at ports of RAILYARD_PORTS, so that
/// what the firewall lets through is what is tried.
std::vector<Fd> listen_for_peers(const PortRange& ports, std::vector<NicAddress>& nics, Findings& out) {
  constexpr int kBacklog = 1024;
  std::vector<Fd> listeners;
  for (NicAddress& nic : nics) {
    sockaddr_storage name{};
    auto& address = reinterpret_cast<sockaddr_in&>(name);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(nic.address);
    auto socket = listen_within(ports, name, sizeof address, kBacklog, [&] {
      Fd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (made && !nic.loopback) (void)fabric::tcp::bind_to_device(made.get(), nic.name);
      return made;
    });
    if (!socket) {
      out.push_back({"ports", Verdict::fail, socket.error().message(), "Peers cannot connect to this rank.", ""});
      continue;
    }
    nic.port = ntohs(address.sin_port);
    listeners.push_back(std::move(*socket));
  }
  return listeners;
}

std::vector<std::byte> write_nics(const Offer& offer) {
  ByteWriter out;
  out.text(offer.host);
  out.u8(offer.sockets ? 1 : 0);
  out.u16(static_cast<std::uint16_t>(offer.nics.size()));
  for (const NicAddress& nic : offer.nics) {
    out.text(nic.name);
    out.u32(nic.address);
    out.u32(nic.mask);
    out.u32(nic.mtu);
    out.u8(nic.loopback ? 1 : 0);
    out.u16(nic.port);
  }
  return out.take();
}

std::optional<Offer> read_nics(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  Offer offer;
  offer.host = in.text();
  offer.sockets = in.u8() != 0;
  const std::uint16_t count = in.u16();
  if (count > kMostNics) in.fail();
  for (std::uint16_t i = 0; i < count && in.ok(); ++i) {
    NicAddress nic;
    nic.name = in.text();
    nic.address = in.u32();
    nic.mask = in.u32();
    nic.mtu = in.u32();
    nic.loopback = in.u8() != 0;
    nic.port = in.u16();
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

/// What all of a rank's tries have in common.
struct RankTries {
  const Offer& mine;
  const std::vector<fabric::RailOffer>& rails;
  int timeout_ms = 0;
  const PortRange& ports;
};

/// What the kernel would do with packets that are not bound to a NIC. Nothing: it sends them by the rail's own.
std::optional<RouteSeen> other_way(std::size_t rank, const NicAddress& own, const NicAddress& peer,
                                   std::span<const fabric::RailOffer> rails) {
  const auto endpoint = [](const NicAddress& nic) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(nic.address);
    return fabric::tcp::Endpoint::from(reinterpret_cast<const sockaddr&>(address));
  };
  if (own.loopback) return std::nullopt;
  const auto device = fabric::tcp::device_of_route(endpoint(own), endpoint(peer));
  if (!device || *device == own.name || *device == "lo") return std::nullopt;  // lo: a rank of this host
  const auto rail = std::ranges::find(rails, own.name, &fabric::RailOffer::domain);
  if (rail == rails.end()) return std::nullopt;
  const Fd scratch(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return RouteSeen{rank,
                   own.name,
                   own.text(),
                   peer.name,
                   peer.text(),
                   *device,
                   rail->driver == "ofi",
                   scratch && fabric::tcp::bind_to_device(scratch.get(), own.name)};
}

/// Names both NICs in what `check_peer` found between them.
void name_nics(Finding& finding, std::size_t rank, const NicAddress* own, const NicAddress& peer) {
  const std::string way = own == nullptr ? "" : fmt::format(" from {}", own->name);
  finding.found = fmt::format("rank {}: {}{}: {}", rank, peer.name, way, finding.found);
  constexpr std::uint32_t kHeaders = 28;  // of IPv4 and ICMP
  if (finding.check == "path-mtu" && own != nullptr && own->mtu > kHeaders)
    finding.fix = fmt::format(
        "Give {} (MTU {} here), {} (MTU {} there) and every switch port between them the same MTU; `ping -M do -s {} "
        "-I {} {}` shows whether it passes",
        own->name, own->mtu, peer.name, peer.mtu, own->mtu - kHeaders, own->name, peer.text());
  if (finding.found.ends_with("nobody listens there")) {
    finding.meaning = fmt::format(
        "The rank listens there, on {} alone: packets for that address arrive at another NIC of its host, or a "
        "firewall rejects them.",
        peer.name);
    finding.fix =
        "A subnet for each NIC, or sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 there; "
        "open the ports of RAILYARD_PORTS";
  }
}

void check_rank(std::size_t rank, const RankTries& tries, const Offer& theirs, Findings& out) {
  if (theirs.nics.empty() && theirs.sockets) {
    out.push_back({"peer", Verdict::fail,
                   fmt::format("rank {} ({}) has no NIC with an IPv4 address", rank, theirs.host),
                   "No tcp rail reaches it.", "Give a NIC there an address; look at RAILYARD_INTERFACES there"});
  }
  for (const NicAddress& nic : theirs.nics) {
    if (nic.port == 0) continue;
    const NicAddress* const own = neighbour_of(tries.mine.nics, nic);
    PeerWay way{"", "", PeerAnswers::kBytes};
    if (own != nullptr) way = {own->text(), own->loopback ? "" : own->name, PeerAnswers::kBytes};
    Finding finding = check_peer(fmt::format("{}:{}", nic.text(), nic.port), tries.timeout_ms, tries.ports, way);
    name_nics(finding, rank, own, nic);
    out.push_back(std::move(finding));
    if (own == nullptr) continue;
    if (const auto route = other_way(rank, *own, nic, tries.rails)) out.push_back(judge_route(*route));
    if (own->mtu == 0 || nic.mtu == 0 || own->mtu == nic.mtu) continue;
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

Finding judge_route(const RouteSeen& route) {
  Finding finding{"routes", Verdict::ok,
                  fmt::format("rank {}: packets from {} ({}) to {} there ({}) leave by {}", route.rank, route.own,
                              route.own_address, route.peer, route.peer_address, route.device),
                  "", ""};
  if (!route.libfabric && route.may_bind) {
    finding.found += fmt::format(" by the kernel's routes; tcp rails are bound to {} and leave by it", route.own);
    return finding;
  }
  finding.verdict = route.libfabric ? Verdict::warn : Verdict::fail;
  finding.meaning =
      route.libfabric
          ? fmt::format(
                "libfabric's sockets follow the kernel's routes: {} carries nothing, and its bytes are those of "
                "{} besides its own.",
                route.own, route.device)
          : "This kernel does not let sockets be bound to a device: no tcp rail uses this pair of NICs.";
  finding.fix = fmt::format(
      "A subnet for each NIC, or a routing table for each: `ip route add {0} dev {1} table N; ip rule add from {2} "
      "table N`; `ip route get {0} from {2}` shows the way. {3}",
      route.peer_address, route.own, route.own_address,
      route.libfabric ? "RAILYARD_DRIVER=tcp does without" : "CAP_NET_RAW lets sockets be bound");
  return finding;
}

Result<int> check_ranks(const HostFiles& host, const Settings& settings, int timeout_ms, Findings& out) {
  auto bootstrap = open_bootstrap(settings);
  if (!bootstrap) return std::move(bootstrap.error());
  auto ports = PortRange::parse(settings.ports);
  if (!ports) return std::move(ports.error());
  const auto rails = fabric::chosen_offers(settings);
  const bool verbs = rails && rails->front().driver == "verbs";
  Offer mine{host.read("proc/sys/kernel/hostname").value_or("?"), !verbs, own_nics(settings)};
  const PeerAnswers answers(listen_for_peers(*ports, mine.nics, out));
  auto all = (*bootstrap)->allgather(write_nics(mine), {});
  if (!all) return std::move(all.error());
  const std::vector<fabric::RailOffer> none;
  const RankTries tries{mine, rails ? *rails : none, timeout_ms, *ports};
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    const auto theirs = read_nics((*all)[rank]);
    if (static_cast<int>(rank) == (*bootstrap)->rank() || !theirs) continue;
    check_rank(rank, tries, *theirs, out);
  }
  if (auto tried = check_rdma_ranks(**bootstrap, settings, timeout_ms, out); !tried) return std::move(tried.error());
  // Nobody closes its sockets before all have tried.
  if (auto met = (*bootstrap)->barrier({}); !met) return std::move(met.error());
  return (*bootstrap)->rank();
}

}  // namespace railyard::tool
