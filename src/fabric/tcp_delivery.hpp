/// What a TCP connection tells of its path: the kernel at the other end acknowledges whatever its process does.
#pragma once

#include <optional>

#include "fabric/rail.hpp"

namespace railyard::fabric {

/// What the other side's kernel has acknowledged; nothing where the connection does not stand.
std::optional<Delivery> delivery_of(int socket);

}  // namespace railyard::fabric
