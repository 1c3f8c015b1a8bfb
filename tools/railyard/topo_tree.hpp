/// The devices of a machine as `railyard topo` draws them: NUMA nodes, below them what hangs together on PCIe, below
/// that GPUs and NICs.
#pragma once

#include <string>
#include <vector>

#include "json.hpp"
#include "topology/gpu_rails.hpp"

namespace railyard::tool {

/// Devices below one PCIe switch, or of a host bridge without one.
struct TopoGroup {
  std::string bridge;             ///< "pci0000:10"; empty: on no PCI bus
  std::string pci_switch;         ///< its upstream port; empty: none
  std::vector<std::size_t> gpus;  ///< places in the table
  std::vector<std::size_t> nics;
};

struct TopoNode {
  int numa = -1;  ///< -1: unknown
  int socket = -1;
  std::vector<TopoGroup> groups;
};

struct TopoTree {
  topology::GpuTable table;
  std::vector<TopoNode> nodes;
};

TopoTree make_topo_tree(topology::GpuTable table);

/// GPUs that a NIC serves, "0, 3".
std::vector<std::size_t> served_by(const TopoTree& tree, std::size_t nic);
std::string node_title(const TopoNode& node);
std::string group_title(const TopoGroup& group);

/// As a tree for the terminal.
std::string topo_text(const TopoTree& tree, bool unicode);
/// As a picture: an SVG file.
std::string topo_picture(const TopoTree& tree);
std::string topo_json(const TopoTree& tree);

}  // namespace railyard::tool
