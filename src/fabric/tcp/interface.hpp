/// What discovery found out about an interface, for the rail that is opened on it.
#pragma once

#include <string>

#include "fabric/tcp/address.hpp"

namespace railyard::fabric::tcp {

struct Interface {
  std::string device;
  Endpoint address;  ///< the one that the rail uses; port 0
  bool loopback = false;
  bool crowded = false;  ///< another NIC of this host is in the same subnet
};

/// Kernel settings by which a NIC in a crowded subnet loses packets to another, with what to set them to; empty: none.
std::string settings_in_the_way(const Interface& interface);

}  // namespace railyard::fabric::tcp
