/// What discovery found out about an interface, for the rail that is opened on it.
#pragma once

#include <string>

#include "fabric/tcp/address.hpp"

namespace railyard::fabric::tcp {

struct Interface {
  std::string device;
  Endpoint address;  ///< the one that the rail uses; port 0
  bool loopback = false;
};

}  // namespace railyard::fabric::tcp
