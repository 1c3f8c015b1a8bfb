/// A rail's address as peers get it: who speaks there, and the names of its endpoints.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "railyard/result.hpp"

namespace railyard::fabric::ofi {

inline constexpr std::size_t kMostNameBytes = 512;

struct OfiRailAddress {
  std::string provider;      ///< "tcp" and "tcp;ofi_rxm" do not understand each other
  std::uint32_t format = 0;  ///< libfabric's address format
  std::vector<std::vector<std::byte>> names;

  std::vector<std::byte> pack() const;
  /// A peer's address, which must be of the same kind as `own`; `rail` names this rail in errors.
  static Result<OfiRailAddress> parse(std::span<const std::byte> bytes, const OfiRailAddress& own,
                                      const std::string& rail);
};

}  // namespace railyard::fabric::ofi
