/// What a TCP connection tells of the process at its other end: the kernel there acknowledges as long as the process
/// holds its end open, stopped or busy as it may be.
#pragma once

#include "fabric/rail.hpp"

namespace railyard::fabric {

/// Has the kernel ask the other side about once a second where nothing is under way.
void keep_asking(int socket);
/// `alive` while the other side acknowledges; `unknown` where it does not, or the connection does not stand.
Liveness liveness_of(int socket);

}  // namespace railyard::fabric
