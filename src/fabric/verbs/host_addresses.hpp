/// The addresses at which peers may find this host, for rails whose GID is none: those of InfiniBand.
#pragma once

#include <span>
#include <vector>

#include "fabric/verbs/library.hpp"

namespace railyard::fabric::verbs {

struct HostAddress {
  ibv_gid ip{};  ///< as GIDs hold addresses
  bool up = false;
  bool loopback = false;
  std::vector<std::uint8_t> hardware;  ///< the address of its interface: of IPoIB 20 bytes that end with a port's GID
};

/// All of them, as the kernel lists them.
std::vector<HostAddress> list_host_addresses();
/// At most so many of them: first those of the port itself, as its traffic goes, then those of other ports of
/// InfiniBand, then the rest. None of the link alone: nobody knows which link. Loopback where there is nothing else.
std::vector<ibv_gid> choose_host_addresses(std::span<const HostAddress> found, const ibv_gid& port, std::size_t most);

}  // namespace railyard::fabric::verbs
