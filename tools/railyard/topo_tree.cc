#include "topo_tree.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "info_gpus.hpp"
#include "text.hpp"

namespace railyard::tool {

namespace {

using topology::PciLocation;

/// Below a root port there is a switch where a device has two more ports above it: the switch's own.
std::string switch_of(const PciLocation& location) { return location.bridges.size() >= 3 ? location.bridges[1] : ""; }

TopoGroup& group_for(TopoTree& tree, const PciLocation& location) {
  auto node = std::ranges::find_if(tree.nodes, [&](const TopoNode& one) { return one.numa == location.numa; });
  if (node == tree.nodes.end()) node = tree.nodes.insert(node, {location.numa, location.socket, {}});
  const std::string pci_switch = switch_of(location);
  auto group = std::ranges::find_if(
      node->groups, [&](const TopoGroup& one) { return one.bridge == location.root && one.pci_switch == pci_switch; });
  if (group == node->groups.end()) group = node->groups.insert(group, {location.root, pci_switch, {}, {}});
  return *group;
}

struct Branch {
  const char* child;
  const char* last;
  const char* bar;
};
constexpr Branch kUnicode{"├─ ", "└─ ", "│  "};
constexpr Branch kAscii{"+- ", "`- ", "|  "};

std::string gpu_text(const TopoTree& tree, std::size_t index) {
  const topology::Gpu& gpu = tree.table.gpus[index];
  const topology::GpuRails& rails = tree.table.rails[index];
  std::vector<std::string> names;
  for (const topology::AssignedNic& rail : rails.rails)
    names.push_back(fmt::format("{} ({})", tree.table.nics[rail.nic].name, topology::to_string(rail.path)));
  return fmt::format("GPU {}  {}  {} {}  <- {}{}", index, gpu.address.text(), gpu.vendor, gpu.model,
                     names.empty() ? "no rail" : fmt::format("{}", fmt::join(names, ", ")),
                     rails.by_hand ? ", by RAILYARD_GPU_RAILS" : "");
}

std::string nic_text(const TopoTree& tree, std::size_t index) {
  const topology::Nic& nic = tree.table.nics[index];
  std::string text = fmt::format("NIC {}", nic.name);
  if (const std::string function = nic.location.function(); !function.empty()) text += "  " + function;
  if (nic.rate > 0) text += fmt::format("  {} Gb/s", readable_number(nic.rate * 8e-9));
  const auto served = served_by(tree, index);
  if (!served.empty()) text += fmt::format("  -> GPU {}", fmt::join(served, ", "));
  if (served.empty() && !tree.table.gpus.empty()) text += "  spare";
  return text;
}

}  // namespace

TopoTree make_topo_tree(topology::GpuTable table) {
  TopoTree tree;
  tree.table = std::move(table);
  for (std::size_t i = 0; i < tree.table.gpus.size(); ++i)
    group_for(tree, tree.table.gpus[i].location).gpus.push_back(i);
  for (std::size_t i = 0; i < tree.table.nics.size(); ++i)
    group_for(tree, tree.table.nics[i].location).nics.push_back(i);
  // What nobody knows the location of comes last.
  std::ranges::stable_sort(tree.nodes, {}, [](const TopoNode& node) { return static_cast<unsigned>(node.numa); });
  for (TopoNode& node : tree.nodes)
    std::ranges::stable_sort(node.groups, [](const TopoGroup& a, const TopoGroup& b) {
      return std::pair(a.bridge.empty(), std::tie(a.bridge, a.pci_switch)) <
             std::pair(b.bridge.empty(), std::tie(b.bridge, b.pci_switch));
    });
  return tree;
}

std::vector<std::size_t> served_by(const TopoTree& tree, std::size_t nic) {
  std::vector<std::size_t> gpus;
  for (std::size_t gpu = 0; gpu < tree.table.rails.size(); ++gpu)
    if (std::ranges::find(tree.table.rails[gpu].rails, nic, &topology::AssignedNic::nic) !=
        tree.table.rails[gpu].rails.end())
      gpus.push_back(gpu);
  return gpus;
}

std::string node_title(const TopoNode& node) {
  if (node.numa < 0) return "NUMA node unknown";
  return node.socket < 0 ? fmt::format("NUMA node {}", node.numa)
                         : fmt::format("NUMA node {} (socket {})", node.numa, node.socket);
}

std::string group_title(const TopoGroup& group) {
  if (group.bridge.empty()) return "on no PCI bus";
  return group.pci_switch.empty() ? group.bridge : fmt::format("{}, switch {}", group.bridge, group.pci_switch);
}

std::string topo_text(const TopoTree& tree, bool unicode) {
  const Branch& branch = unicode ? kUnicode : kAscii;
  std::string out = "Machine\n";
  for (const TopoNode& node : tree.nodes) {
    const bool last_node = &node == &tree.nodes.back();
    out += fmt::format("{}{}\n", last_node ? branch.last : branch.child, node_title(node));
    const std::string below_node = last_node ? "   " : branch.bar;
    for (const TopoGroup& group : node.groups) {
      const bool last_group = &group == &node.groups.back();
      out += fmt::format("{}{}{}\n", below_node, last_group ? branch.last : branch.child, group_title(group));
      const std::string below_group = below_node + (last_group ? "   " : branch.bar);
      std::vector<std::string> devices;
      for (const std::size_t gpu : group.gpus) devices.push_back(gpu_text(tree, gpu));
      for (const std::size_t nic : group.nics) devices.push_back(nic_text(tree, nic));
      for (std::size_t i = 0; i < devices.size(); ++i)
        out += fmt::format("{}{}{}\n", below_group, i + 1 == devices.size() ? branch.last : branch.child, devices[i]);
    }
  }
  if (tree.table.gpus.empty()) out += "No GPU: every rail serves the whole machine.\n";
  return out;
}

std::string topo_json(const TopoTree& tree) {
  JsonWriter json;
  json.begin_object();
  write_gpus(json, tree.table);
  json.key("nics").begin_array();
  for (std::size_t i = 0; i < tree.table.nics.size(); ++i) {
    const topology::Nic& nic = tree.table.nics[i];
    json.begin_object()
        .field("name", std::string_view(nic.name))
        .field("provider", std::string_view(nic.provider))
        .field("pci", std::string_view(nic.location.function()))
        .field("numa", nic.location.numa)
        .field("bridge", std::string_view(nic.location.root))
        .field("switch", std::string_view(switch_of(nic.location)))
        .field("line_rate_bytes_per_second", nic.rate);
    json.key("serves").begin_array();
    for (const std::size_t gpu : served_by(tree, i)) json.value(std::uint64_t{gpu});
    json.end_array().end_object();
  }
  return json.end_array().end_object().finish();
}

}  // namespace railyard::tool
