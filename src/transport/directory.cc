#include "transport/directory.hpp"

#include <fmt/format.h>

#include <cstring>

#include "base/bytes.hpp"
#include "transport/wire.hpp"

namespace railyard {
namespace {

constexpr std::uint32_t kMagic = 0x64726179;  // "yard"
constexpr std::size_t kMostText = 256;
constexpr std::size_t kMostAddress = 1024;
constexpr std::uint16_t kMostRails = 256;

}  // namespace

std::vector<std::byte> Directory::contribution(const Identity& identity, std::span<fabric::Rail* const> rails,
                                               const transport::WorldEntry& entry) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u16(transport::wire::kVersion);
  writer.raw(std::as_bytes(std::span(identity.bytes)));
  writer.u16(entry.first_flow);
  writer.u64(entry.instance);
  writer.u16(static_cast<std::uint16_t>(rails.size()));
  for (const fabric::Rail* rail : rails) {
    writer.text(rail->fabric());
    writer.blob(rail->address());
  }
  return writer.take();
}

Result<transport::PeerAddress> parse_contribution(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (reader.u32() != kMagic) return Error(Status::invalid, "not a Railyard contribution");
  if (const std::uint16_t version = reader.u16(); reader.ok() && version != transport::wire::kVersion) {
    return Error(Status::version_mismatch, fmt::format("wire version {}, this library speaks {}: use one version of "
                                                       "Railyard in a job",
                                                       version, transport::wire::kVersion));
  }
  transport::PeerAddress peer;
  const auto identity = reader.raw(peer.identity.bytes.size());
  if (!identity.empty()) std::memcpy(peer.identity.bytes.data(), identity.data(), identity.size());
  peer.entry.first_flow = reader.u16();
  peer.entry.instance = reader.u64();
  const std::uint16_t rails = reader.u16();
  if (rails > kMostRails) reader.fail();
  for (std::uint16_t i = 0; i < rails && reader.ok(); ++i) {
    transport::PeerAddress::RailAt rail;
    rail.fabric = reader.text(kMostText);
    rail.address = reader.blob(kMostAddress);
    peer.rails.push_back(std::move(rail));
  }
  if (!reader.done()) return Error(Status::invalid, "a contribution that is cut short or too long");
  return peer;
}

Result<Directory> Directory::open(std::span<const std::vector<std::byte>> contributions) {
  Directory directory;
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    if (const auto peer = parse_contribution(contributions[rank]); !peer) {
      return Error(peer.status(), fmt::format("rank {}: {}", rank, peer.error().message()),
                   {.peer = static_cast<int>(rank), .operation = "open"});
    }
    directory.starts_.push_back(static_cast<std::uint32_t>(directory.bytes_.size()));
    directory.bytes_.insert(directory.bytes_.end(), contributions[rank].begin(), contributions[rank].end());
  }
  directory.starts_.push_back(static_cast<std::uint32_t>(directory.bytes_.size()));
  directory.bytes_.shrink_to_fit();
  return directory;
}

Result<transport::PeerAddress> Directory::find(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return parse_contribution(std::span(bytes_).subspan(starts_[index], starts_[index + 1] - starts_[index]));
}

}  // namespace railyard
