#include "fabric/ofi/address.hpp"

#include <fmt/format.h>
#include <rdma/fabric.h>

#include <algorithm>

#include "base/bytes.hpp"

namespace railyard::fabric::ofi {

namespace {

constexpr std::uint32_t kMagic = 0x41415952;  // "RYAA"
constexpr std::uint16_t kVersion = 2;         // with every change of what travels, too

/// Providers read a name as if it had the length of their own; strings (shm) may differ in it but end with a zero.
bool well_formed(const OfiRailAddress& peer, const OfiRailAddress& own) {
  if (peer.names.size() != own.names.size()) return false;
  for (std::size_t i = 0; i < peer.names.size(); ++i) {
    const auto& name = peer.names[i];
    if (name.empty()) return false;
    if (own.format == FI_ADDR_STR ? name.back() != std::byte{0} : name.size() != own.names[i].size()) return false;
  }
  return true;
}

}  // namespace

std::vector<std::byte> OfiRailAddress::pack() const {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u16(kVersion);
  writer.u16(static_cast<std::uint16_t>(names.size()));
  writer.raw(rail);
  writer.raw(secret);
  writer.text(provider);
  writer.u32(format);
  for (const auto& name : names) writer.blob(name);
  return writer.take();
}

Result<OfiRailAddress> OfiRailAddress::parse(std::span<const std::byte> bytes, const OfiRailAddress& own,
                                             const std::string& rail) {
  ByteReader reader(bytes);
  if (reader.u32() != kMagic)
    return Error(Status::invalid, fmt::format("{}: a peer's rail address is no address of the ofi driver", rail));
  if (const auto version = reader.u16(); version != kVersion)
    return Error(Status::version_mismatch,
                 fmt::format("{}: a peer's rail address has version {}, this library speaks {}: use the same release "
                             "on all ranks",
                             rail, version, kVersion));
  OfiRailAddress peer;
  const std::size_t count = reader.u16();
  std::ranges::copy(reader.raw(peer.rail.size()), peer.rail.begin());
  std::ranges::copy(reader.raw(peer.secret.size()), peer.secret.begin());
  peer.provider = reader.text(kMostNameBytes);
  peer.format = reader.u32();
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    const auto name = reader.blob(kMostNameBytes);
    peer.names.emplace_back(name.begin(), name.end());
  }
  if (!reader.done()) return Error(Status::invalid, fmt::format("{}: a peer's rail address is malformed", rail));
  if (peer.provider != own.provider || peer.format != own.format)
    return Error(Status::invalid,
                 fmt::format("{}: a peer's rail uses provider '{}', this one '{}': set RAILYARD_PROVIDER and "
                             "RAILYARD_ENDPOINTS alike on all ranks",
                             rail, peer.provider, own.provider));
  if (!well_formed(peer, own))
    return Error(Status::invalid, fmt::format("{}: a peer's rail address is malformed", rail));
  return peer;
}

}  // namespace railyard::fabric::ofi
