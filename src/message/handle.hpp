/// What a handle says, and how its 128 bytes are laid out (little-endian):
///
///     bytes      what
///     0 - 7      magic "RYHANDLE"
///     8 - 9      version; magic and version keep their place in every version
///     10         flags, none yet: 0
///     11         number of addresses, 1 to 4
///     12 - 13    port of the listener
///     14 - 15    0
///     16 - 31    secret of the listener
///     32 - 39    id of the listener
///     40 - 47    hash of what only processes on the listener's machine know
///     48 - 111   addresses, 16 bytes each, IPv4 as ::ffff:a.b.c.d; unused ones are 0
///     112 - 119  first bytes of the SHA-256 of everything before: a damaged handle is found out
///     120 - 127  the connecting side's: id of the handshake it began; 0 as issued
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "message/ip_address.hpp"
#include "railyard/channel.hpp"
#include "railyard/result.hpp"

namespace railyard::message {

inline constexpr std::uint16_t kHandleVersion = 1;
inline constexpr std::size_t kMostAddresses = 4;

using Secret = std::array<std::byte, 16>;

struct HandleContents {
  Secret secret{};
  std::uint64_t listener = 0;
  std::uint64_t machine = 0;
  std::uint16_t port = 0;
  std::vector<IpAddress> addresses;  ///< best first
  bool operator==(const HandleContents&) const = default;
};

/// What handles made here say of the machine.
std::uint64_t machine_of_handles();

/// As issued: no handshake yet. Addresses beyond the first four are left out.
Handle make_handle(const HandleContents& contents);
/// Believes nothing: `invalid` for bytes that are no handle, `version_mismatch` for another version's.
Result<HandleContents> read_handle(const Handle& handle);

/// Whether both are the same but for the connecting side's part.
bool same_listener(const Handle& a, const Handle& b);
/// The part that belongs to the connecting side.
std::uint64_t handshake_of(const Handle& handle);
void set_handshake(Handle& handle, std::uint64_t handshake);

}  // namespace railyard::message
