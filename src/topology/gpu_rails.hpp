/// The rails of each GPU of this host: what hwloc finds, what the drivers offer and what the settings say, put
/// together.
#pragma once

#include <string>
#include <vector>

#include "railyard/result.hpp"
#include "railyard/settings.hpp"
#include "topology/assignment.hpp"
#include "topology/machine.hpp"

namespace railyard::topology {

struct GpuTable {
  std::vector<Gpu> gpus;        ///< all of the host, by PCI address
  std::vector<Nic> nics;        ///< that may serve them
  std::vector<GpuRails> rails;  ///< for each GPU, in the order of `gpus`

  /// The NICs that serve the GPU at this address ("0000:17:00.0", as CUDA, HIP and NVML say it), as RAILYARD_INTERFACES
  /// takes them.
  Result<std::string> interfaces_of(std::string_view gpu) const;
};

/// As RAILYARD_RAILS_PER_GPU and RAILYARD_GPU_RAILS say. Where hwloc knows a NIC, its location is taken from hwloc.
Result<GpuTable> make_gpu_table(const Settings& settings, Machine machine, std::vector<Nic> nics);

/// For this host, with the NICs that the settings choose.
Result<GpuTable> find_gpu_table(const Settings& settings);

}  // namespace railyard::topology
