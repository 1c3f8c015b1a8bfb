/// Which local rail talks to which remote rail. Both ends compute the same pairs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace railyard::transport {

/// Two ends that share a machine's memory use that alone, unless `network_only`. Else pairs rails of equal fabric,
/// index by index, wrapping on the side that has fewer; every rail that has a partner gets one. Where no fabric is
/// shared, all rails into a network are taken for one fabric: it may route between them.
std::vector<std::pair<std::uint16_t, std::uint16_t>> pair_rails(std::span<const std::string> local,
                                                                std::span<const std::string> remote,
                                                                bool network_only = false);

}  // namespace railyard::transport
