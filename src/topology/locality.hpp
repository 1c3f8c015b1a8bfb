/// Which NICs belong together: those below one host bridge, which are equally far from the GPUs below it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "topology/pci.hpp"

namespace railyard::fabric {
struct RailOffer;
}

namespace railyard::topology {

struct Nic {
  std::string name;
  std::string provider;  ///< what opens it: "tcp", "verbs"
  double rate = 0;       ///< bytes per second; 0: unknown
  PciLocation location;
  bool device_memory = false;  ///< a rail on it takes the memory of GPUs
};

/// The NICs behind these offers, with their locations on the PCI bus.
std::vector<Nic> nics_of(std::span<const fabric::RailOffer> offers);

/// By PCI address, those on no PCI bus last; then by name, port 2 before port 10. The same on every host of one build,
/// whatever the order in which the system lists its devices.
bool comes_before(const Nic& a, const Nic& b);

/// Groups in the order in which their first NIC comes. NICs on no PCI bus are one group, the last.
std::vector<std::vector<Nic>> group_by_locality(std::vector<Nic> nics);

}  // namespace railyard::topology
