/// What the 512 bytes of a memory handle say. The host passes them round; nothing in them is an address to follow.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "abi.hpp"
#include "railyard/result.hpp"
#include "window/lone_window.hpp"

namespace railyard::nvshmem {

/// Operations of the host's threads and those of its proxy go apart: each kind has a world of its own.
inline constexpr std::size_t kLanes = 2;
/// What tells a handle from all others, at its beginning; and where its number is.
inline constexpr std::size_t kHandleHeader = 24;
inline constexpr std::size_t kRegistrationAt = 12;

struct Handle {
  std::uint32_t pe = 0;            ///< whose memory
  std::uint32_t registration = 0;  ///< its owner's number for it, from 1
  bool local_only = false;         ///< not for peers
  std::uint64_t address = 0;       ///< what its owner calls the first byte
  std::span<const std::byte> description[kLanes];

  /// Into the bytes that the host keeps. An error: they do not fit.
  Result<void> write(abi::MemHandle& to) const;
  /// The spans point into `from`.
  static Result<Handle> read(const abi::MemHandle& from);
  /// The number alone, unchecked.
  static std::uint32_t registration_in(const abi::MemHandle& from) {
    std::uint32_t number = 0;
    std::memcpy(&number, from.bytes + kRegistrationAt, sizeof number);
    return number;
  }
};

/// The most rails of both lanes together, the one through shared memory of each included.
inline constexpr std::size_t kMostRails =
    (sizeof(abi::MemHandle) - kHandleHeader - kLanes * (sizeof(std::uint16_t) + LoneWindow::description_bytes(0))) /
    (LoneWindow::description_bytes(1) - LoneWindow::description_bytes(0));
static_assert(kMostRails >= 52);

}  // namespace railyard::nvshmem
