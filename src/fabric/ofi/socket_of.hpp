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

/// Has the sockets of the queue's endpoints closed in programs that this process starts: a child that kept them would
/// keep a dead parent's connections alive. The provider does not. Between its `accept` or `connect` and the end of the
/// connection's set-up they are open to a child all the same, and so are its epoll and signalling descriptors, which
/// keep nothing alive.
void close_on_exec(fid_cq& queue);
/// The same for the socket that listens at this address.
void close_listener_on_exec(std::span<const std::byte> name);

/// Sockets by number and identity.
using Sockets = std::vector<std::pair<int, std::uint64_t>>;

/// The connected sockets of this process whose own address is this one: those that a listener there has accepted.
Sockets sockets_at(std::span<const std::byte> name);
/// Closes those that are still the same sockets.
void close_leftovers(const Sockets& sockets);

}  // namespace railyard::fabric::ofi
