/// Which NICs belong together: those below one host bridge, which are equally far from the GPUs below it.
#pragma once

#include <string>
#include <vector>

#include "topology/pci.hpp"

namespace railyard::topology {

struct Nic {
  std::string name;
  std::string provider;  ///< what opens it: "tcp", "verbs"
  double rate = 0;       ///< bytes per second; 0: unknown
  PciPlace place;
};

/// Groups in the order in which their first NIC comes. NICs on no PCI bus are one group, the last.
std::vector<std::vector<Nic>> group_by_locality(std::vector<Nic> nics);

}  // namespace railyard::topology
