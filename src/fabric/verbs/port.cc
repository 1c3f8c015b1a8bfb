#include "fabric/verbs/port.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>

namespace railyard::fabric::verbs {

namespace {

struct DeviceList {
  const Library& library;
  int count = 0;
  ibv_device** list;

  explicit DeviceList(const Library& calls) : library(calls), list(calls.get_device_list(&count)) {}
  ~DeviceList() {
    if (list != nullptr) library.free_device_list(list);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
};

/// Lower is better: a routable address of RoCE v2 that people gave the interface, before one it gave itself.
enum class GidRank : std::uint8_t { ipv4, ipv6, link_local, infiniband, none };

GidRank rank_of(const ibv_gid_entry& entry) {
  if (is_zero(entry.gid)) return GidRank::none;
  switch (entry.gid_type) {
    case IBV_GID_TYPE_IB:
      return GidRank::infiniband;
    case IBV_GID_TYPE_ROCE_V2:
      if (ipv4_of(entry.gid) != 0) return GidRank::ipv4;
      return is_link_local(entry.gid) ? GidRank::link_local : GidRank::ipv6;
    default:
      return GidRank::none;  // RoCE v1 does not leave its switch
  }
}

std::optional<ibv_gid_entry> gid_at(const Library& library, ibv_context& context, const Port& port, int index) {
  ibv_gid_entry entry{};
  const auto number = static_cast<std::uint32_t>(index);
  if (library.query_gid_ex != nullptr) {
    if (library.query_gid_ex(&context, port.number, number, &entry, 0, sizeof entry) != 0) return std::nullopt;
    return entry;
  }
  // Without the type: on Ethernet one with an IPv4 address is of version 1 at its first place and 2 at its second.
  if (library.query_gid(&context, port.number, index, &entry.gid) != 0) return std::nullopt;
  entry.gid_index = number;
  entry.gid_type = port.infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
  return entry;
}

/// The best GID of the table, or the one the settings name; nothing: none will do.
std::optional<ibv_gid_entry> choose_gid(const Library& library, ibv_context& context, const Port& port, int table,
                                        int wanted) {
  if (wanted >= 0) {
    auto entry = wanted < table ? gid_at(library, context, port, wanted) : std::nullopt;
    return entry && !is_zero(entry->gid) ? entry : std::nullopt;
  }
  std::optional<ibv_gid_entry> best;
  for (int index = 0; index < table; ++index) {
    const auto entry = gid_at(library, context, port, index);
    if (!entry || rank_of(*entry) == GidRank::none) continue;
    // Where types are unknown the later of two equals is of version 2.
    const bool later = library.query_gid_ex == nullptr && best && rank_of(*entry) == rank_of(*best);
    if (!best || rank_of(*entry) < rank_of(*best) || later) best = entry;
  }
  return best;
}

/// The default partition, else the first whose full member this port is.
std::uint16_t choose_pkey(const Library& library, ibv_context& context, const Port& port, int table) {
  constexpr std::uint16_t kFullMember = 0x8000;
  constexpr std::uint16_t kDefault = 0xffff;
  std::optional<std::uint16_t> full;
  for (int index = 0; index < table; ++index) {
    __be16 raw = 0;
    if (library.query_pkey(&context, port.number, index, &raw) != 0) continue;
    const std::uint16_t pkey = ntohs(raw);
    if (pkey == kDefault) return static_cast<std::uint16_t>(index);
    if (!full && (pkey & kFullMember) != 0) full = static_cast<std::uint16_t>(index);
  }
  return full.value_or(0);
}

int bits_in(const void* mask, std::size_t bytes) {
  int bits = 0;
  for (std::size_t i = 0; i < bytes; ++i) bits += __builtin_popcount(static_cast<const std::uint8_t*>(mask)[i]);
  return bits;
}

/// Whether the first bits of two addresses are the same.
bool begin_alike(const std::uint8_t* one, const std::uint8_t* other, int bits) {
  const auto whole = static_cast<std::size_t>(bits / 8);
  if (std::memcmp(one, other, whole) != 0) return false;
  const int rest = bits % 8;
  return rest == 0 || ((one[whole] ^ other[whole]) >> (8 - rest)) == 0;
}

/// How many leading bits of the address name its network: as the interface that has it is set, else as one in whose
/// network it lies; -1: there is none.
int prefix_of(const ibv_gid& gid) {
  const std::uint32_t ipv4 = ipv4_of(gid);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return -1;
  int prefix = -1;
  bool itself = false;
  for (const ifaddrs* one = all; one != nullptr && !itself; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_netmask == nullptr) continue;
    if (one->ifa_addr->sa_family != (ipv4 != 0 ? AF_INET : AF_INET6)) continue;
    const auto bytes_of = [ipv4](const sockaddr* address) {
      return ipv4 != 0 ? reinterpret_cast<const std::uint8_t*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                       : reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr.s6_addr;
    };
    const std::size_t bytes = ipv4 != 0 ? sizeof(in_addr) : sizeof(in6_addr);
    const std::uint8_t* const own = gid.raw + sizeof gid.raw - bytes;
    const int bits = bits_in(bytes_of(one->ifa_netmask), bytes);
    itself = std::memcmp(bytes_of(one->ifa_addr), own, bytes) == 0;
    if (itself || (bits > prefix && bits > 0 && begin_alike(bytes_of(one->ifa_addr), own, bits))) prefix = bits;
  }
  freeifaddrs(all);
  return prefix;
}

/// The interface that has the address, the device's own if it is one of them; 0: none.
unsigned interface_of(const ibv_gid& gid, unsigned own) {
  const std::uint32_t ipv4 = ipv4_of(gid);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return 0;
  unsigned interface = 0;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != (ipv4 != 0 ? AF_INET : AF_INET6)) continue;
    const bool itself = ipv4 != 0 ? reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr == ipv4
                                  : std::memcmp(&reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr,
                                                gid.raw, sizeof gid.raw) == 0;
    if (!itself) continue;
    const unsigned found = if_nametoindex(one->ifa_name);
    if (interface == 0 || found == own) interface = found;
  }
  freeifaddrs(all);
  return interface;
}

/// The part of the address that its network shares, and how long that is.
std::string network_of(const ibv_gid& gid) {
  constexpr int kSubnetBits = 64;
  const std::uint32_t ipv4 = ipv4_of(gid);
  int prefix = prefix_of(gid);
  if (prefix < 0) prefix = ipv4 != 0 ? 0 : kSubnetBits;
  ibv_gid network = gid;
  const int first = ipv4 != 0 ? 96 + prefix : prefix;
  for (int bit = first; bit < 128; ++bit) network.raw[bit / 8] &= static_cast<std::uint8_t>(~(0x80U >> (bit % 8)));
  if (ipv4 != 0 && ipv4_of(network) == 0) return fmt::format("0.0.0.0/{}", prefix);
  return fmt::format("{}/{}", text_of(network), prefix);
}

const char* state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "without a subnet manager";
    case IBV_PORT_ARMED:
      return "armed, not active";
    default:
      return "not active";
  }
}

/// Fills `port` in; else says why it can carry no rail.
std::string look_at(const Library& library, ibv_context& context, Port& port, const Settings& settings) {
  ibv_port_attr attributes{};
  if (library.query_port(&context, port.number, reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) != 0)
    return fmt::format("port {} does not answer", port.number);
  if (attributes.state != IBV_PORT_ACTIVE)
    return fmt::format("port {} is {}", port.number, state_name(attributes.state));
  port.infiniband = attributes.link_layer != IBV_LINK_LAYER_ETHERNET;
  port.lid = attributes.lid;
  port.mtu = attributes.active_mtu;
  port.max_message = attributes.max_msg_sz;
  port.rate = rate_of(attributes.active_speed, attributes.active_width);
  const auto gid = choose_gid(library, context, port, attributes.gid_tbl_len, settings.gid_index);
  if (!gid) {
    if (settings.gid_index >= 0)
      return fmt::format("port {} has no GID at RAILYARD_GID_INDEX={}", port.number, settings.gid_index);
    return fmt::format("port {} has no GID of RoCE v2: give its interface an address", port.number);
  }
  port.gid = gid->gid;
  port.gid_index = static_cast<int>(gid->gid_index);
  port.pkey_index = choose_pkey(library, context, port, attributes.pkey_tbl_len);
  port.gid_text = text_of(port.gid);
  if (!port.infiniband) port.interface = interface_of(port.gid, gid->ndev_ifindex);
  port.fabric = "verbs " + network_of(port.gid);
  constexpr std::uint32_t kLoopbackNetwork = 127;
  port.loopback = (ntohl(ipv4_of(port.gid)) >> 24) == kLoopbackNetwork;
  return {};
}

/// A device that knows them finds fault with the descriptor, one that does not with the call.
bool takes_dma_bufs(const Library& library, ibv_context& context) {
  if (library.reg_dmabuf_mr == nullptr) return false;
  const Domain domain(library.alloc_pd(&context), {&library});
  if (!domain) return false;
  const MemoryRegion none(library.reg_dmabuf_mr(domain.get(), 0, 0, 0, -1, 0), {&library});
  return !none && errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS;
}

}  // namespace

bool is_zero(const ibv_gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](std::uint8_t byte) { return byte == 0; });
}

bool same_gid(const ibv_gid& one, const ibv_gid& other) { return std::memcmp(one.raw, other.raw, sizeof one.raw) == 0; }

bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

std::string text_of(const ibv_gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const std::uint32_t ipv4 = ipv4_of(gid);
  const char* const result = ipv4 != 0 ? inet_ntop(AF_INET, &ipv4, text.data(), text.size())
                                       : inet_ntop(AF_INET6, gid.raw, text.data(), text.size());
  return result == nullptr ? std::string() : std::string(result);
}

std::uint32_t ipv4_of(const ibv_gid& gid) {
  constexpr std::array<std::uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::memcmp(gid.raw, kMapped.data(), kMapped.size()) != 0) return 0;
  std::uint32_t address = 0;
  std::memcpy(&address, gid.raw + kMapped.size(), sizeof address);
  return address;
}

double rate_of(std::uint8_t speed, std::uint8_t width) {
  static const std::map<int, double> kLaneGigabits = {{1, 2.5}, {2, 5},   {4, 10},  {8, 10},
                                                      {16, 14}, {32, 25}, {64, 50}, {128, 100}};
  static const std::map<int, int> kLanesOf = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  const auto lane = kLaneGigabits.find(speed);
  const auto lanes = kLanesOf.find(width);
  if (lane == kLaneGigabits.end() || lanes == kLanesOf.end()) return 0;
  return lane->second * lanes->second * 1e9 / 8;
}

Result<DeviceContext> open_device(const Library& library, const std::string& device) {
  const DeviceList devices(library);
  for (int i = 0; i < devices.count; ++i) {
    if (device != library.get_device_name(devices.list[i])) continue;
    ibv_context* const context = library.open_device(devices.list[i]);
    if (context == nullptr)
      return Error(Status::io, fmt::format("could not open the RDMA device {}: {}. May this user write to "
                                           "/dev/infiniband, and is `ulimit -l` large enough?",
                                           device, std::strerror(errno)));
    return DeviceContext(context, {&library});
  }
  return Error(Status::not_found, fmt::format("the RDMA device {} has gone", device));
}

Result<PortList> list_ports(const Settings& settings) {
  auto calls = verbs::library();
  if (!calls) return std::move(calls.error());
  const Library& library = **calls;
  PortList found;
  const DeviceList devices(library);
  for (int i = 0; i < devices.count; ++i) {
    const std::string name = library.get_device_name(devices.list[i]);
    // Only these have queue pairs of type RC with immediates: not iWARP, not EFA's own kind.
    if (devices.list[i]->transport_type != IBV_TRANSPORT_IB) {
      found.unfit.push_back(name + " (neither InfiniBand nor RoCE)");
      continue;
    }
    const DeviceContext context(library.open_device(devices.list[i]), {&library});
    ibv_device_attr attributes{};
    if (!context || library.query_device(context.get(), &attributes) != 0) {
      found.unfit.push_back(fmt::format("{} (does not open: {})", name, std::strerror(errno)));
      continue;
    }
    const bool dma_bufs = takes_dma_bufs(library, *context);
    for (std::uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
      Port port;
      port.dma_bufs = dma_bufs;
      port.device = name;
      port.number = number;
      const std::string why = look_at(library, *context, port, settings);
      if (why.empty())
        found.ports.push_back(std::move(port));
      else
        found.unfit.push_back(fmt::format("{} ({})", name, why));
    }
  }
  return found;
}

}  // namespace railyard::fabric::verbs
