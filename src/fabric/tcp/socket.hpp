/// The sockets of a tcp rail: how they are made, tuned, and bound to the rail's NIC. Every one of them is non-blocking
/// and closed in child processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "fabric/tcp/address.hpp"

namespace railyard::fabric::tcp {

/// A TCP socket of the address's family; holds nothing on failure (errno).
Fd open_socket(const Endpoint& address);
/// What every connection wants: small segments at once, a kernel that finds out about dead peers, no deep queue of
/// bytes that a later message would have to wait behind. `unsent`: how many bytes the kernel takes ahead of the wire.
void tune(int socket, std::uint32_t unsent);
/// Sends and takes packets through this device only. False: the kernel does not let us (errno).
bool bind_to_device(int socket, const std::string& device);
/// The device by which packets from `source` to `target` leave, as the kernel's routes say; nothing: it does not say.
std::optional<std::string> device_of_route(const Endpoint& source, const Endpoint& target);
/// Whether the other end's kernel has acknowledged anything lately.
bool answered_lately(int socket);

}  // namespace railyard::fabric::tcp
