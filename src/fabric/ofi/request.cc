#include "fabric/ofi/request.hpp"

#include <algorithm>

#include "base/bytes.hpp"
#include "base/sha256.hpp"

namespace railyard::fabric::ofi {

namespace {

constexpr std::uint32_t kRefusalMagic = 0x4e415952;  // "RYAN"
constexpr std::uint8_t kRequestVersion = 3;
/// Half of the digest: no shorter (RFC 2104), and no longer for want of room.
constexpr std::size_t kMacBytes = 16;
constexpr std::size_t kSignedBytes = LinkRequest::kBytes - kMacBytes;

using Mac = std::array<std::byte, kMacBytes>;

Mac mac_of(std::span<const std::byte> bytes, const Secret& key) {
  Mac mac{};
  std::ranges::copy_n(hmac_sha256(key, bytes).begin(), kMacBytes, mac.begin());
  return mac;
}

}  // namespace

std::array<std::byte, LinkRequest::kBytes> LinkRequest::pack(const Secret& key) const {
  ByteWriter writer;
  writer.u8(kRequestVersion);
  writer.u8(static_cast<std::uint8_t>(lane));
  writer.u64(tag.id.high);
  writer.u64(tag.id.low);
  writer.u32(tag.epoch);
  writer.raw(from);
  writer.u32(number);
  writer.raw(mac_of(writer.bytes(), key));
  std::array<std::byte, kBytes> bytes{};
  std::ranges::copy_n(writer.bytes().begin(), kBytes, bytes.begin());
  return bytes;
}

std::optional<LinkRequest> LinkRequest::parse(std::span<const std::byte> bytes, const Secret& key) {
  // Some providers pad what they carry: more bytes than these are no fault.
  if (bytes.size() < kBytes) return std::nullopt;
  const auto claimed = bytes.subspan(kSignedBytes, kMacBytes);
  if (!equal_in_constant_time(claimed, mac_of(bytes.first(kSignedBytes), key))) return std::nullopt;
  ByteReader reader(bytes);
  if (reader.u8() != kRequestVersion) return std::nullopt;
  const std::uint8_t lane = reader.u8();
  LinkRequest request;
  request.lane = static_cast<Lane>(lane);
  request.tag.id.high = reader.u64();
  request.tag.id.low = reader.u64();
  request.tag.epoch = reader.u32();
  std::ranges::copy(reader.raw(request.from.size()), request.from.begin());
  request.number = reader.u32();
  return lane < kLanes ? std::optional(request) : std::nullopt;
}

std::vector<std::byte> pack_refusal() {
  ByteWriter writer;
  writer.u32(kRefusalMagic);
  return writer.take();
}

bool is_refusal(std::span<const std::byte> bytes) { return ByteReader(bytes).u32() == kRefusalMagic; }

}  // namespace railyard::fabric::ofi
