/// Checks of NICs, routes and RDMA devices.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "doctor_checks.hpp"

namespace railyard::tool {

namespace {

/// Rails of one speed are meant to be alike; a slow port for administration may differ from them.
void check_mtu(const HostFiles& host, Findings& out) {
  std::map<double, std::map<double, std::vector<std::string>>> by_speed;
  for (const std::string& name : host.interfaces_up()) {
    const auto mtu = host.number("sys/class/net/" + name + "/mtu");
    const auto speed = host.number("sys/class/net/" + name + "/speed");
    if (mtu && speed && *speed > 0) by_speed[*speed][*mtu].push_back(name);
  }
  Finding finding{"mtu", Verdict::ok, "the same on NICs of equal speed", "", ""};
  if (by_speed.empty()) finding = {"mtu", Verdict::not_applicable, "no NIC says its speed", "", ""};
  for (const auto& [speed, by_mtu] : by_speed) {
    if (by_mtu.size() < 2) continue;
    std::vector<std::string> parts;
    for (const auto& [mtu, names] : by_mtu) parts.push_back(fmt::format("{:.0f} on {}", mtu, fmt::join(names, ", ")));
    finding = {"mtu", Verdict::warn, fmt::format("{}", fmt::join(parts, "; ")),
               "Rails that should be alike are not: the ones with short packets are slower, and where the switch "
               "differs, too, long packets vanish.",
               fmt::format("ip link set {} mtu {:.0f}", by_mtu.begin()->second.front(), by_mtu.rbegin()->first)};
  }
  out.push_back(std::move(finding));
}

struct Network {
  std::string destination;
  std::string mask;
  auto operator<=>(const Network&) const = default;  // NOLINT(modernize-use-nullptr): the compiler wrote it
};

/// Whether NICs of one subnet answer for their own addresses only.
bool kept_apart(const HostFiles& host, const std::vector<std::string>& names) {
  const auto setting = [&](const std::string& name, const char* what) {
    const auto all = host.number(fmt::format("proc/sys/net/ipv4/conf/all/{}", what)).value_or(0);
    return std::max(all, host.number(fmt::format("proc/sys/net/ipv4/conf/{}/{}", name, what)).value_or(0));
  };
  return std::ranges::all_of(names, [&](const std::string& name) {
    return setting(name, "arp_ignore") >= 1 && setting(name, "arp_announce") >= 2;
  });
}

void check_routes(const HostFiles& host, Findings& out) {
  std::istringstream in(host.read("proc/net/route").value_or(""));
  std::string line;
  std::getline(in, line);  // the titles
  std::map<Network, std::vector<std::string>> networks;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string name, destination, gateway, flags, count, use, metric, mask;
    fields >> name >> destination >> gateway >> flags >> count >> use >> metric >> mask;
    if (gateway != "00000000" || mask == "00000000" || name == "lo") continue;
    auto& names = networks[{destination, mask}];
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  Finding finding{"routes", Verdict::ok, "each NIC has a subnet of its own", "", ""};
  if (networks.empty()) finding = {"routes", Verdict::not_applicable, "no NIC has an IPv4 subnet", "", ""};
  for (const auto& [network, names] : networks) {
    if (names.size() < 2) continue;
    finding.found = fmt::format("{} share a subnet", fmt::join(names, ", "));
    if (kept_apart(host, names)) continue;
    finding.verdict = Verdict::warn;
    finding.meaning = fmt::format(
        "What is meant for any of them leaves by {} and may arrive at another: rails have "
        "the bandwidth of one NIC, or do not come about.",
        names.front());
    finding.fix =
        "A subnet for each NIC; or sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 "
        "and `ip rule add from ADDRESS table N` for each";
    break;
  }
  out.push_back(std::move(finding));
}

std::string variable(const HostFiles& host, std::string_view wanted) {
  for (const auto& [name, value] : host.environment())
    if (name == wanted) return value;
  return {};
}

/// Ports that the kernel gives to outgoing connections are not always free to listen at.
void check_ports(const HostFiles& host, Findings& out) {
  const std::string wanted = variable(host, "RAILYARD_PORTS");
  if (wanted.empty()) {
    out.push_back({"ports", Verdict::ok, "the kernel chooses (RAILYARD_PORTS is not set)", "", ""});
    return;
  }
  const auto range = PortRange::parse(wanted);
  if (!range) {
    out.push_back({"ports", Verdict::fail, range.error().message(), "No process starts with it.",
                   "RAILYARD_PORTS=first-last, as in RAILYARD_PORTS=20000-20099"});
    return;
  }
  Finding finding{"ports", Verdict::ok, fmt::format("RAILYARD_PORTS={}, {} of them", wanted, range->count()), "", ""};
  std::istringstream in(host.read("proc/sys/net/ipv4/ip_local_port_range").value_or(""));
  unsigned first = 0, last = 0;
  const bool overlaps = in >> first >> last && range->first <= last && first <= range->last;
  const std::string reserved = host.read("proc/sys/net/ipv4/ip_local_reserved_ports").value_or("");
  if (overlaps && ("," + reserved + ",").find("," + range->text() + ",") == std::string::npos) {
    finding.verdict = Verdict::warn;
    finding.found += fmt::format("; the kernel gives {}-{} to outgoing connections", first, last);
    finding.meaning = "Connections of any program may hold ports of the range: now and then none is left to listen at.";
    finding.fix =
        fmt::format("Take a range below {}, or sysctl -w net.ipv4.ip_local_reserved_ports={}", first, range->text());
  }
  out.push_back(std::move(finding));
}

void check_congestion(const HostFiles& host, Findings& out) {
  const std::string wanted = variable(host, "RAILYARD_CONGESTION");
  const std::string known = host.read("proc/sys/net/ipv4/tcp_available_congestion_control").value_or("");
  Finding finding{"congestion", Verdict::ok, "RAILYARD_CONGESTION=" + wanted, "", ""};
  if (wanted.empty()) {
    finding.found = "the kernel's default (RAILYARD_CONGESTION is not set)";
  } else if ((" " + known + " ").find(" " + wanted + " ") == std::string::npos) {
    finding.verdict = Verdict::fail;
    finding.found += fmt::format("; the kernel has: {}", known.empty() ? "unknown" : known);
    finding.meaning = "No tcp rail can be opened.";
    finding.fix = fmt::format("modprobe tcp_{}, or take one that is there", wanted);
  }
  out.push_back(std::move(finding));
}

struct Gid {
  int index = 0;
  std::string type;
};

std::optional<int> whole_number(const std::string& text) {
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

std::vector<Gid> gids_of(const HostFiles& host, const std::string& port) {
  std::vector<Gid> gids;
  for (const std::string& index : host.list(port + "/gids")) {
    const auto number = whole_number(index);
    const std::string gid = host.read(fmt::format("{}/gids/{}", port, index)).value_or("");
    if (!number || gid.find_first_not_of("0:") == std::string::npos) continue;
    gids.push_back({*number, host.read(fmt::format("{}/gid_attrs/types/{}", port, index)).value_or("")});
  }
  return gids;
}

std::optional<int> wanted_gid(const HostFiles& host) { return whole_number(variable(host, "RAILYARD_GID_INDEX")); }

void check_port(const HostFiles& host, const std::string& device, const std::string& number, Findings& out) {
  const std::string port = "sys/class/infiniband/" + device + "/ports/" + number;
  const std::string state = host.read(port + "/state").value_or("");
  const std::string name = fmt::format("{} port {}", device, number);
  if (state.find("ACTIVE") == std::string::npos) {
    out.push_back({"rdma-port", Verdict::warn, fmt::format("{} is {}", name, state.empty() ? "unreadable" : state),
                   "No rail is opened on it.", "Look at the cable and at `ibstat`; InfiniBand needs a subnet manager"});
    return;
  }
  if (host.read(port + "/link_layer") != "Ethernet") {
    out.push_back({"roce-gid", Verdict::not_applicable, name + " is InfiniBand", "", ""});
    return;
  }
  const std::vector<Gid> gids = gids_of(host, port);
  const auto usable = std::ranges::count(gids, std::string("RoCE v2"), &Gid::type);
  const auto wanted = wanted_gid(host);
  Finding finding{"roce-gid", Verdict::ok, fmt::format("{} has {} of RoCE v2", name, usable), "", ""};
  if (usable == 0) {
    finding.verdict = Verdict::fail;
    finding.meaning = "Packets could not be routed: no verbs rail can be opened on this port.";
    finding.fix = "Give its interface an IP address, and take RoCE v2 in cma_roce_mode";
  } else if (wanted && *wanted >= 0) {
    const auto chosen = std::ranges::find(gids, *wanted, &Gid::index);
    if (chosen == gids.end() || chosen->type != "RoCE v2") {
      finding.verdict = Verdict::fail;
      finding.found = fmt::format("RAILYARD_GID_INDEX={}, which on {} is {}", *wanted, name,
                                  chosen == gids.end() ? "empty" : chosen->type);
      finding.meaning = "Peers cannot be reached with that address.";
      finding.fix = "Leave RAILYARD_GID_INDEX unset, or see /" + port + "/gid_attrs/types for an entry of RoCE v2";
    }
  }
  out.push_back(std::move(finding));
}

void check_gpu_memory(const HostFiles& host, Findings& out) {
  Finding finding{"gpu-rdma", Verdict::ok, "", "", ""};
  if (!host.has_nvidia_gpus() || host.rdma_devices().empty()) {
    finding.verdict = Verdict::not_applicable;
    finding.found = "no NVIDIA GPU beside an RDMA device";
  } else if (host.exists("sys/module/nvidia_peermem") || host.exists("sys/module/nv_peer_mem")) {
    finding.found = "nvidia_peermem is loaded";
  } else if (host.read("proc/driver/nvidia/version").value_or("").find("Open Kernel Module") != std::string::npos) {
    finding.found = "open kernel module: dma-buf";
  } else {
    finding.verdict = Verdict::warn;
    finding.found = "neither nvidia_peermem nor NVIDIA's open kernel module, which has dma-buf";
    finding.meaning = "NICs cannot reach memory of GPUs: it is copied through the host's memory.";
    finding.fix = "modprobe nvidia_peermem, or install the open kernel module of the driver";
  }
  out.push_back(std::move(finding));
}

/// The domain types of the devices that move our bytes: "identity" passes through, "DMA" and "DMA-FQ" translate.
std::vector<std::string> iommu_domains(const HostFiles& host) {
  std::vector<std::string> types;
  const auto add = [&](const std::string& group) {
    if (auto type = host.read(group + "/type"); type && !type->empty()) types.push_back(std::move(*type));
  };
  for (const std::string& device : host.rdma_devices()) add("sys/class/infiniband/" + device + "/device/iommu_group");
  for (const std::string& gpu : host.list("proc/driver/nvidia/gpus"))
    add("sys/bus/pci/devices/" + gpu + "/iommu_group");
  if (!types.empty()) return types;
  for (const std::string& group : host.list("sys/kernel/iommu_groups")) add("sys/kernel/iommu_groups/" + group);
  return types;
}

/// The command line is asked only where the kernel does not tell what it made of it : the default is a choice of
/// whoever built it.
bool iommu_passes_through(const HostFiles& host) {
  const auto types = iommu_domains(host);
  if (!types.empty()) return std::ranges::none_of(types, [](const auto& type) { return type.starts_with("DMA"); });
  const std::string line = " " + host.read("proc/cmdline").value_or("") + " ";
  return line.find(" iommu=pt ") != std::string::npos || line.find("iommu.passthrough=1") != std::string::npos;
}

void check_iommu(const HostFiles& host, Findings& out) {
  const bool used = !host.list("sys/kernel/iommu_groups").empty();
  const bool through = used && iommu_passes_through(host);
  Finding finding{"iommu", Verdict::ok, !used ? "off" : through ? "passes devices through" : "translates", "", ""};
  if (host.rdma_devices().empty() && !host.has_nvidia_gpus()) {
    finding.verdict = Verdict::not_applicable;
    finding.found += "; no RDMA device and no GPU here";
  } else if (used && !through) {
    finding.verdict = Verdict::warn;
    finding.meaning =
        "Every transfer between devices is translated and goes through the root complex: GPU memory over "
        "RDMA is slow or fails.";
    finding.fix = "iommu=pt on the kernel's command line";
  }
  out.push_back(std::move(finding));
}

}  // namespace

void check_network(const HostFiles& host, Findings& out) {
  check_routes(host, out);
  check_mtu(host, out);
  check_ports(host, out);
  check_congestion(host, out);
}

void check_rdma(const HostFiles& host, Findings& out) {
  const auto devices = host.rdma_devices();
  if (devices.empty()) out.push_back({"roce-gid", Verdict::not_applicable, "no RDMA device", "", ""});
  for (const std::string& device : devices)
    for (const std::string& number : host.list("sys/class/infiniband/" + device + "/ports"))
      check_port(host, device, number, out);
  check_gpu_memory(host, out);
  check_iommu(host, out);
}

}  // namespace railyard::tool
