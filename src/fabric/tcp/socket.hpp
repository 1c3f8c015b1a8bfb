/// The sockets of a tcp rail: how they are made, tuned, and bound to the rail's NIC. Every one of them is non-blocking
/// and closed in child processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "fabric/tcp/address.hpp"
#include "railyard/result.hpp"

namespace railyard::fabric::tcp {

/// A TCP socket of the address's family; holds nothing on failure (errno).
Fd open_socket(const Endpoint& address);
/// What the settings and the NIC say of a rail's sockets.
struct SocketOptions {
  std::uint32_t unsent = 0;        ///< how many bytes the kernel takes ahead of the wire
  std::uint8_t traffic_class = 0;  ///< of links that have none of their own
  std::uint64_t pacing = 0;        ///< most bytes a second; 0: no limit
  std::string congestion;          ///< empty: the kernel's default
};
/// What every connection wants: small segments at once, a kernel that finds out about dead peers, no deep queue of
/// bytes that a later message would have to wait behind; and what the options say. `traffic_class`: the link's; 0: it
/// has none.
void tune(int socket, const SocketOptions& options, std::uint8_t traffic_class = 0);
/// Marks what the socket sends: the IP header's class, and the priority by which queues and VLANs of this host go.
void mark_packets(int socket, std::uint8_t traffic_class);
/// An error that names the kernel's choices where it does not have this one, or does not let us use it.
Result<void> use_congestion_control(int socket, const std::string& name);
/// Sends and takes packets through this device only. False: the kernel does not let us (errno).
bool bind_to_device(int socket, const std::string& device);
/// A second listener at the address and port of `bound`, which is bound to a device: it hears whoever arrives by any
/// other. Holds nothing where the kernel cannot tell the two apart.
Fd listen_beside(int bound, const Endpoint& address, int backlog);
/// Whether the device that it is bound to still has this name: one that was made anew is another.
bool still_bound(int socket, const std::string& device);
/// The device by which packets from `source` to `target` leave, as the kernel's routes say; nothing: it does not say.
std::optional<std::string> device_of_route(const Endpoint& source, const Endpoint& target);
/// The kernel sends the acknowledgement that it owes, if it owes one, and lets the next one ride on an answer.
void acknowledge_later(int socket);
/// Whether the other end's kernel has acknowledged anything lately.
bool answered_lately(int socket);

}  // namespace railyard::fabric::tcp
