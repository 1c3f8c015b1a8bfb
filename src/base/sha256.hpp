/// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104): what the bootstrap proves its job key with. Not for bulk data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace railyard {

using Digest = std::array<std::byte, 32>;

/// Hashes a message that comes in chunks.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  /// The digest of everything given. Call once.
  Digest finish();

 private:
  void block(const std::byte* bytes);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  std::uint64_t length_ = 0;
};

Digest sha256(std::span<const std::byte> message);
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);

/// Compares in a time that depends on the lengths alone, so that a wrong guess teaches nothing.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace railyard
