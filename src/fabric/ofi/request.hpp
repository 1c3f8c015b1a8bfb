/// What a connection request and its refusal carry.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fabric/ofi/address.hpp"
#include "fabric/rail.hpp"

namespace railyard::fabric::ofi {

/// One lane of a link wants to stand. There is one message each way and no room for a challenge, so a request proves by
/// itself that its sender knows the listener's secret, and a number makes it good for one time only.
struct LinkRequest {
  /// libfabric's verbs provider carries no more than 55 bytes with a request, its tcp provider 256.
  static constexpr std::size_t kBytes = 54;

  Lane lane = Lane::control;
  LinkTag tag;
  RailName from{};           ///< the rail that asks
  std::uint32_t number = 0;  ///< of its requests to this listener

  /// `key` is the listener's (fabric/secret.hpp).
  std::array<std::byte, kBytes> pack(const Secret& key) const;
  /// Nothing: this is no request of ours, or whoever wrote it does not know the secret.
  static std::optional<LinkRequest> parse(std::span<const std::byte> bytes, const Secret& key);
};

/// Room for what comes with a connection event; requests are shorter, others' may be longer.
inline constexpr std::size_t kMostRequestBytes = 256;
static_assert(LinkRequest::kBytes <= 55);

/// Says that a peer is there and does not want this epoch of the link: "refused" alone means that nobody is there.
std::vector<std::byte> pack_refusal();
bool is_refusal(std::span<const std::byte> bytes);

}  // namespace railyard::fabric::ofi
