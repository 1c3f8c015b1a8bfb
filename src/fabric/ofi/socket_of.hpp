/// The socket below an endpoint, where there is one.
#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>

namespace railyard::fabric::ofi {

/// The socket of a connected endpoint that is bound to this queue, still owned by the provider; -1 where the provider
/// has none or does not show it.
int socket_of(fid_cq& queue, fid_ep& endpoint);

}  // namespace railyard::fabric::ofi
