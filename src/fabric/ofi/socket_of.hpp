/// The sockets below endpoints, where there are any.
#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace railyard::fabric::ofi {

/// The socket of a connected endpoint that is bound to this queue, still owned by the provider; -1 where the provider
/// has none or does not show it.
int socket_of(fid_cq& queue, fid_ep& endpoint);

/// Sockets by number and identity.
using Sockets = std::vector<std::pair<int, std::uint64_t>>;

/// The connected sockets of this process whose own address is this one: those that a listener there has accepted.
Sockets sockets_at(std::span<const std::byte> name);
/// Closes those that are still the same sockets.
void close_leftovers(const Sockets& sockets);

}  // namespace railyard::fabric::ofi
