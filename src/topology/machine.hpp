/// The GPUs of this host and where its devices hang, as hwloc tells it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "railyard/result.hpp"
#include "topology/locality.hpp"
#include "topology/pci.hpp"

namespace railyard::topology {

struct Gpu {
  PciAddress address;
  std::string vendor;  ///< "NVIDIA", "AMD", "Intel"
  std::string model;   ///< its name where hwloc knows it, else "10de:2330"
  PciLocation location;
};

/// The same in every process of a host, whichever GPUs and cores the process may use: it is read from the PCI bus, and
/// neither CUDA_VISIBLE_DEVICES nor a cpuset leaves anything out.
struct Machine {
  std::vector<Gpu> gpus;                      ///< by address
  std::vector<Nic> nics;                      ///< RDMA devices, by address, or interfaces where there are none of these
  std::map<PciAddress, PciLocation> devices;  ///< every function that hwloc knows
};

/// Whether a PCI function of this class and vendor is a GPU: those of NVIDIA, AMD and Intel, displays or not, and no
/// other vendor's, since every server has a display controller for its console.
bool is_gpu(unsigned pci_class, unsigned vendor);

/// This host. hwloc's own variables work (HWLOC_XMLFILE).
Result<Machine> read_machine();
/// The machine saved in a file (lstopo FILE.xml). Line rates are not in it.
Result<Machine> read_saved_machine(const std::string& file);

}  // namespace railyard::topology
