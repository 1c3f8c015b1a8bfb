/// Addresses of this machine: which of them a handle carries, and in which order those of a handle are tried.
#pragma once

#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/address.hpp"

namespace railyard::message {

/// IPv4 (as ::ffff:a.b.c.d) or IPv6.
struct IpAddress {
  std::array<std::byte, 16> bytes{};

  /// Nothing for an address of another family.
  static std::optional<IpAddress> of(const sockaddr& name);
  bool is_v4() const;
  bool loopback() const;
  /// Means something on one link only. An IPv6 one needs to be told which.
  bool link_local() const;
  std::string text() const;
  auto operator<=>(const IpAddress&) const = default;
};

/// An address to connect to.
struct Target {
  IpAddress address;
  std::uint32_t scope = 0;  ///< of an IPv6 link-local address: the interface here; 0 of any other

  /// "192.0.2.1:4711", "[fe80::1%eth0]:4711".
  std::string text(std::uint16_t port) const;
  rendezvous::Endpoint endpoint(std::uint16_t port) const;
};

/// One address of one interface, as the system lists it.
struct InterfaceAddress {
  std::string interface;
  std::uint32_t index = 0;
  bool up = false;
  bool loopback = false;
  IpAddress address;
};
std::vector<InterfaceAddress> list_addresses();

/// At most `most` of them for others to try, best first. `interfaces` is the setting of that name: its interfaces, or,
/// where it names none that is up (it may name NICs that have no address), all. IPv4, then IPv6, then what reaches one
/// link only; at the end always one of loopback, for those on this machine.
std::vector<IpAddress> choose_addresses(std::span<const InterfaceAddress> found, std::string_view interfaces,
                                        std::size_t most);

/// Where to try, in order. A peer on this machine is reached by loopback whatever its interfaces; any other by that
/// last. An IPv6 link-local address is tried on each interface of `found` that has one itself.
std::vector<Target> order_targets(std::span<const IpAddress> addresses, bool same_machine,
                                  std::span<const InterfaceAddress> found);

}  // namespace railyard::message
