/// Where a device sits on the PCI bus, as the kernel tells it.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::topology {

/// A PCI function. The order of addresses is the same in every process, that of enumeration need not be.
struct PciAddress {
  std::uint32_t domain = 0;
  std::uint32_t bus = 0;
  std::uint32_t device = 0;
  std::uint32_t function = 0;

  auto operator<=>(const PciAddress&) const = default;  // NOLINT(modernize-use-nullptr): the compiler wrote it
  /// "0000:17:00.0", as in /sys.
  std::string text() const;
};

/// "0000:17:00.0", "00000000:17:00.0" (as NVML says it) or "17:00.0", in either case; nothing for anything else.
std::optional<PciAddress> parse_pci_address(std::string_view text);

struct PciLocation {
  std::string path;                  ///< the device's folder in /sys, all links resolved; empty: it is on no PCI bus
  std::string root;                  ///< the host bridge it hangs from, "pci0000:17"; empty: unknown
  int numa = -1;                     ///< the NUMA node it is near; -1: unknown
  int socket = -1;                   ///< the CPU package it is near; -1: unknown
  std::vector<std::string> bridges;  ///< from its host bridge down to it: root port, ports of PCIe switches

  /// "0000:17:00.0", or nothing.
  std::string function() const { return path.substr(path.rfind('/') + 1); }
};

/// The location of a network interface ("eth0") or an RDMA device ("mlx5_0", "rdmap0s6-rdm"). Nowhere where the kernel
/// knows no such device, or one that is not on a PCI bus: loopback, bridges, bonds. `sys` is /sys but in tests.
PciLocation find_pci_location(std::string_view nic, const std::string& sys = "/sys");

/// The same for the folder of a device: what follows the last PCI function in it (a virtio device) is cut off.
PciLocation parse_pci_path(std::string_view path);

/// The processors that the kernel calls near to a PCI function, in order; none where it does not say.
std::vector<int> near_processors(const PciAddress& address, const std::string& sys = "/sys");

}  // namespace railyard::topology
