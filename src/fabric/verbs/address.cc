#include "fabric/verbs/address.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "fabric/verbs/port.hpp"

namespace railyard::fabric::verbs {

namespace {

constexpr std::uint32_t kAddressMagic = 0x56415952;    // "RYAV"
constexpr std::uint32_t kCmMessageMagic = 0x4c565952;  // "RYVL"
constexpr std::uint16_t kVersion = 4;

}  // namespace

bool CmAddress::operator==(const CmAddress& other) const {
  return name == other.name && same_gid(gid, other.gid) && lid == other.lid && infiniband == other.infiniband &&
         queue_pair == other.queue_pair && queue_key == other.queue_key && liveness_port == other.liveness_port;
}

void CmAddress::write(ByteWriter& writer) const {
  writer.u64(name);
  writer.raw(std::as_bytes(std::span(gid.raw)));
  writer.u16(lid);
  writer.u8(infiniband ? 1 : 0);
  writer.u32(queue_pair);
  writer.u32(queue_key);
  writer.u16(liveness_port);
}

CmAddress CmAddress::read(ByteReader& reader) {
  CmAddress address;
  address.name = reader.u64();
  const auto gid = reader.raw(sizeof address.gid.raw);
  if (!gid.empty()) std::memcpy(address.gid.raw, gid.data(), gid.size());
  address.lid = reader.u16();
  address.infiniband = reader.u8() != 0;
  address.queue_pair = reader.u32();
  address.queue_key = reader.u32();
  address.liveness_port = reader.u16();
  return address;
}

bool VerbsRailAddress::operator==(const VerbsRailAddress& other) const {
  return CmAddress::operator==(other) && secret == other.secret && host_port == other.host_port &&
         std::ranges::equal(hosts, other.hosts, same_gid);
}

std::vector<std::byte> VerbsRailAddress::pack() const {
  ByteWriter writer;
  writer.u32(kAddressMagic);
  writer.u16(kVersion);
  write(writer);
  writer.raw(secret);
  writer.u16(host_port);
  writer.u8(static_cast<std::uint8_t>(hosts.size()));
  for (const ibv_gid& host : hosts) writer.raw(std::as_bytes(std::span(host.raw)));
  return writer.take();
}

Result<VerbsRailAddress> VerbsRailAddress::parse(std::span<const std::byte> bytes, bool infiniband,
                                                 const std::string& rail) {
  ByteReader reader(bytes);
  if (reader.u32() != kAddressMagic)
    return Error(Status::invalid, fmt::format("{}: a peer's rail address is no address of the verbs driver: set "
                                              "RAILYARD_DRIVER alike on all ranks",
                                              rail));
  if (const auto version = reader.u16(); version != kVersion)
    return Error(Status::version_mismatch,
                 fmt::format("{}: a peer's rail address has version {}, this library speaks {}: use the same release "
                             "on all ranks",
                             rail, version, kVersion));
  VerbsRailAddress address;
  static_cast<CmAddress&>(address) = read(reader);
  std::ranges::copy(reader.raw(address.secret.size()), address.secret.begin());
  address.host_port = reader.u16();
  const std::size_t hosts = reader.u8();
  if (hosts > kMostHosts) reader.fail();
  for (std::size_t i = 0; i < hosts && reader.ok(); ++i) {
    const auto host = reader.raw(sizeof(ibv_gid));
    if (!host.empty()) std::memcpy(address.hosts.emplace_back().raw, host.data(), host.size());
  }
  if (!reader.done() || address.queue_pair == 0)
    return Error(Status::invalid, fmt::format("{}: a peer's rail address is malformed", rail));
  if (address.infiniband != infiniband)
    return Error(Status::invalid,
                 fmt::format("{}: a peer's rail is on {}, this one on {}: they do not reach each other", rail,
                             address.infiniband ? "InfiniBand" : "Ethernet", infiniband ? "InfiniBand" : "Ethernet"));
  return address;
}

std::vector<std::byte> CmMessage::pack() const {
  ByteWriter writer;
  writer.u32(kCmMessageMagic);
  writer.u16(kVersion);
  writer.u8(static_cast<std::uint8_t>(kind));
  writer.u8(static_cast<std::uint8_t>(reason));
  writer.u8(static_cast<std::uint8_t>(secret_of));
  writer.u64(number);
  from.write(writer);
  writer.u64(here);
  writer.u64(there);
  writer.u8(tagged ? 1 : 0);
  writer.u64(tag.id.high);
  writer.u64(tag.id.low);
  writer.u32(tag.epoch);
  writer.u64(tag.facing.high);
  writer.u64(tag.facing.low);
  writer.u32(end.queue_pair);
  writer.u32(end.first_packet);
  writer.u8(end.mtu);
  writer.u8(end.reads);
  writer.u32(end.ece_vendor);
  writer.u32(end.ece_options);
  writer.u32(end.ece_mask);
  return writer.take();
}

std::optional<CmMessage> CmMessage::parse(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  if (reader.u32() != kCmMessageMagic || reader.u16() != kVersion) return std::nullopt;
  CmMessage message;
  const std::uint8_t kind = reader.u8();
  const std::uint8_t reason = reader.u8();
  const std::uint8_t secret_of = reader.u8();
  message.kind = static_cast<Kind>(kind);
  message.reason = static_cast<Reason>(reason);
  message.secret_of = static_cast<SecretOf>(secret_of);
  message.number = reader.u64();
  message.from = CmAddress::read(reader);
  message.here = reader.u64();
  message.there = reader.u64();
  message.tagged = reader.u8() != 0;
  message.tag.id.high = reader.u64();
  message.tag.id.low = reader.u64();
  message.tag.epoch = reader.u32();
  message.tag.facing.high = reader.u64();
  message.tag.facing.low = reader.u64();
  message.end.queue_pair = reader.u32();
  message.end.first_packet = reader.u32();
  message.end.mtu = reader.u8();
  message.end.reads = reader.u8();
  message.end.ece_vendor = reader.u32();
  message.end.ece_options = reader.u32();
  message.end.ece_mask = reader.u32();
  if (!reader.done() || kind < static_cast<std::uint8_t>(Kind::call) || kind > static_cast<std::uint8_t>(Kind::here) ||
      reason > static_cast<std::uint8_t>(Reason::unknown) || secret_of > static_cast<std::uint8_t>(SecretOf::sender) ||
      message.from.queue_pair == 0)
    return std::nullopt;
  // What a queue pair is brought up with.
  if ((message.kind == Kind::call || message.kind == Kind::answer) &&
      (message.end.queue_pair == 0 || message.end.queue_pair > 0xffffff || message.end.first_packet > 0xffffff ||
       message.end.mtu < IBV_MTU_256 || message.end.mtu > IBV_MTU_4096))
    return std::nullopt;
  return message;
}

}  // namespace railyard::fabric::verbs
