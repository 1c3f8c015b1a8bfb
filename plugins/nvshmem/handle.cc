#include "handle.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.hpp"

namespace railyard::nvshmem {
namespace {

constexpr std::uint32_t kMagic = 0x68767972;  // "ryvh"
constexpr std::uint8_t kVersion = 1;

}  // namespace

Result<void> Handle::write(abi::MemHandle& to) const {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u8(kVersion);
  writer.u8(local_only ? 1 : 0);
  writer.u16(0);
  writer.u32(pe);
  writer.u32(registration);
  static_assert(kRegistrationAt == 12);
  writer.u64(address);
  static_assert(kHandleHeader == 24);
  for (const auto& each : description) {
    writer.u16(static_cast<std::uint16_t>(each.size()));
    writer.raw(each);
  }
  if (writer.size() > sizeof to.bytes) {
    return Error(Status::out_of_range,
                 fmt::format("a memory handle of {} bytes does not fit into {}: set RAILYARD_RAILS lower",
                             writer.size(), sizeof to.bytes));
  }
  std::ranges::fill(to.bytes, std::byte{0});
  std::ranges::copy(writer.bytes(), to.bytes);
  return {};
}

Result<Handle> Handle::read(const abi::MemHandle& from) {
  ByteReader reader(from.bytes);
  Handle handle;
  const bool ours = reader.u32() == kMagic;
  const std::uint8_t version = reader.u8();
  if (!ours) return Error(Status::invalid, "a memory handle that this transport has not made");
  if (version != kVersion) {
    return Error(Status::version_mismatch,
                 fmt::format("a memory handle of version {}, where this transport has {}: all PEs need the same",
                             version, kVersion));
  }
  handle.local_only = reader.u8() != 0;
  reader.u16();
  handle.pe = reader.u32();
  handle.registration = reader.u32();
  handle.address = reader.u64();
  for (auto& each : handle.description) each = reader.raw(reader.u16());
  if (!reader.ok() || handle.registration == 0) return Error(Status::invalid, "a memory handle with broken contents");
  return handle;
}

}  // namespace railyard::nvshmem
