#include "fabric/ofi/request.hpp"

#include "base/bytes.hpp"

namespace railyard::fabric::ofi {

namespace {

constexpr std::uint32_t kRequestMagic = 0x4c415952;  // "RYAL"
constexpr std::uint32_t kRefusalMagic = 0x4e415952;  // "RYAN"
constexpr std::uint16_t kVersion = 2;

}  // namespace

std::vector<std::byte> LinkRequest::pack() const {
  ByteWriter writer;
  writer.u32(kRequestMagic);
  writer.u16(kVersion);
  writer.u8(static_cast<std::uint8_t>(lane));
  writer.u64(tag.id.high);
  writer.u64(tag.id.low);
  writer.u32(tag.epoch);
  writer.blob(from);
  return writer.take();
}

std::optional<LinkRequest> LinkRequest::parse(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (reader.u32() != kRequestMagic || reader.u16() != kVersion) return std::nullopt;
  const std::uint8_t lane = reader.u8();
  LinkRequest request;
  request.lane = static_cast<Lane>(lane);
  request.tag.id.high = reader.u64();
  request.tag.id.low = reader.u64();
  request.tag.epoch = reader.u32();
  const auto from = reader.blob(kMostRequestBytes);
  request.from.assign(from.begin(), from.end());
  // Some providers pad what they carry: more bytes than these are no fault.
  if (!reader.ok() || lane >= kLanes) return std::nullopt;
  return request;
}

std::vector<std::byte> pack_refusal() {
  ByteWriter writer;
  writer.u32(kRefusalMagic);
  return writer.take();
}

bool is_refusal(std::span<const std::byte> bytes) { return ByteReader(bytes).u32() == kRefusalMagic; }

}  // namespace railyard::fabric::ofi
