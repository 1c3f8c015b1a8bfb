/// Where a NIC sits on the PCI bus, as the kernel tells it.
#pragma once

#include <string>
#include <string_view>

namespace railyard::topology {

struct PciPlace {
  std::string path;  ///< the device's folder in /sys, all links resolved; empty: it is on no PCI bus
  std::string root;  ///< the host bridge it hangs from, "pci0000:17"; empty: unknown
  int numa = -1;     ///< the NUMA node it is near; -1: unknown

  /// "0000:17:00.0", or nothing.
  std::string function() const { return path.substr(path.rfind('/') + 1); }
};

/// The place of a network interface ("eth0") or an RDMA device ("mlx5_0", "rdmap0s6-rdm"). Nowhere where the kernel
/// knows no such device, or one that is not on a PCI bus: loopback, bridges, bonds. `sys` is /sys but in tests.
PciPlace find_pci_place(std::string_view nic, const std::string& sys = "/sys");

/// The same for the folder of a device: what follows the last PCI function in it (a virtio device) is cut off.
PciPlace parse_pci_path(std::string_view path);

}  // namespace railyard::topology
