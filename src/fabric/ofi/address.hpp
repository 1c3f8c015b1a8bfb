/// A rail's address as peers get it: who speaks there, and the names of its endpoints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fabric/secret.hpp"
#include "railyard/result.hpp"

namespace railyard::fabric::ofi {

inline constexpr std::size_t kMostNameBytes = 512;

/// A connected rail's identity: random, so that a rail that reuses the port of another is not mistaken for it.
using RailName = std::array<std::byte, 12>;

struct OfiRailAddress {
  std::string provider;      ///< "tcp" and "tcp;ofi_rxm" do not understand each other
  std::uint32_t format = 0;  ///< libfabric's address format
  std::vector<std::vector<std::byte>> names;
  RailName rail{};  ///< of connected rails alone, and so is the secret
  Secret secret{};

  std::vector<std::byte> pack() const;
  /// A peer's address, which must be of the same kind as `own`; `rail` names this rail in errors.
  static Result<OfiRailAddress> parse(std::span<const std::byte> bytes, const OfiRailAddress& own,
                                      const std::string& rail);
};

}  // namespace railyard::fabric::ofi
