/// Which NICs serve which GPU. A pure function of the machine: every process of a host finds the same without a word.
///
/// The rule. From a GPU go up the tree of the machine (PCIe switches, host bridge, NUMA node, socket, machine) until
/// there is a NIC below: all NICs below that point are near. GPUs share near NICs by line rate: with n GPUs for which
/// the same or fewer NICs are near, each takes NICs until it has an n-th of their rate, the least used ones first.
/// GPUs with the fewest near NICs choose first, so that those with more to choose from keep out of their way.
/// Every GPU of the host counts, whoever uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "topology/locality.hpp"
#include "topology/machine.hpp"

namespace railyard::topology {

/// What lies between two devices, nearest first.
enum class PathKind : std::uint8_t {
  pci_switch,   ///< PCIe switches alone
  host_bridge,  ///< the root complex they both hang from
  numa_node,    ///< several root complexes of one NUMA node
  socket,       ///< NUMA nodes of one CPU package
  machine,      ///< sockets, or nobody knows
};
const char* to_string(PathKind path) noexcept;

PathKind path_between(const PciLocation& a, const PciLocation& b) noexcept;

/// A NIC this many times slower than the host's fastest serves no GPU, however near: it is there for the console.
inline constexpr std::uint64_t kSlowNic = 4;

struct AssignedNic {
  std::size_t nic = 0;  ///< its index in the list that was given
  PathKind path = PathKind::machine;

  bool operator==(const AssignedNic&) const = default;
};

struct GpuRails {
  PciAddress gpu;
  bool by_hand = false;             ///< the settings say so
  std::vector<AssignedNic> rails;   ///< they serve it. The first is first for as few other GPUs as possible
  std::vector<AssignedNic> spares;  ///< all others, in the order in which to fall back on them
};

struct AssignmentOptions {
  std::size_t most_per_gpu = 0;                   ///< 0: a fair share, however many
  std::vector<std::vector<std::size_t>> by_hand;  ///< for each GPU: its NICs, or none to choose them. Empty: for none
};

/// One for each GPU, in the order given.
std::vector<GpuRails> assign_nics(std::span<const Gpu> gpus, std::span<const Nic> nics,
                                  const AssignmentOptions& options = {});

}  // namespace railyard::topology
