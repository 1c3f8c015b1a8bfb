/// What a connection request and its refusal carry.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "fabric/rail.hpp"

namespace railyard::fabric::ofi {

/// One lane of a link wants to stand.
struct LinkRequest {
  Lane lane = Lane::control;
  LinkTag tag;
  std::vector<std::byte> from;  ///< the name of the rail that asks: where it listens itself

  std::vector<std::byte> pack() const;
  /// Nothing: this is no request of ours.
  static std::optional<LinkRequest> parse(std::span<const std::byte> bytes);
};

/// Room for what comes with a connection event; requests are shorter, others' may be longer.
inline constexpr std::size_t kMostRequestBytes = 256;

/// Says that a peer is there and does not want this epoch of the link: "refused" alone means that nobody is there.
std::vector<std::byte> pack_refusal();
bool is_refusal(std::span<const std::byte> bytes);

}  // namespace railyard::fabric::ofi
