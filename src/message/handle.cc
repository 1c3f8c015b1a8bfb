#include "message/handle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/bytes.hpp"
#include "base/identity.hpp"
#include "base/sha256.hpp"

namespace railyard::message {

namespace {

constexpr std::uint64_t kHandleMagic = 0x454c444e'41485952ULL;  // "RYHANDLE" in the order the bytes travel
constexpr std::size_t kCheckAt = 112;
constexpr std::size_t kCheckBytes = 8;
constexpr std::size_t kHandshakeAt = kCheckAt + kCheckBytes;
static_assert(kHandshakeAt + sizeof(std::uint64_t) == Handle::kBytes);
static_assert(48 + kMostAddresses * sizeof(IpAddress::bytes) == kCheckAt);

Digest check_of(std::span<const std::byte> handle) { return sha256(handle.first(kCheckAt)); }

Error not_a_handle(std::string_view why) {
  return Error(Status::invalid,
               fmt::format("not a Railyard handle: {}; pass the {} bytes of the listener's handle as they are", why,
                           Handle::kBytes));
}

}  // namespace

std::uint64_t machine_of_handles() {
  const std::string word = machine_word();
  const Digest digest = sha256(std::as_bytes(std::span(word)));
  return ByteReader(digest).u64();
}

Handle make_handle(const HandleContents& contents) {
  const std::size_t count = std::min(contents.addresses.size(), kMostAddresses);
  ByteWriter writer;
  writer.u64(kHandleMagic);
  writer.u16(kHandleVersion);
  writer.u8(0);
  writer.u8(static_cast<std::uint8_t>(count));
  writer.u16(contents.port);
  writer.u16(0);
  writer.raw(contents.secret);
  writer.u64(contents.listener);
  writer.u64(contents.machine);
  for (std::size_t i = 0; i < kMostAddresses; ++i) {
    writer.raw(i < count ? contents.addresses[i].bytes : IpAddress{}.bytes);
  }
  const Digest check = check_of(writer.bytes());
  writer.raw(std::span(check).first(kCheckBytes));
  writer.u64(0);
  Handle handle;
  std::ranges::copy(writer.bytes(), handle.bytes.begin());
  return handle;
}

Result<HandleContents> read_handle(const Handle& handle) {
  ByteReader reader(handle.bytes);
  if (reader.u64() != kHandleMagic) {
    const bool empty = std::ranges::all_of(handle.bytes, [](std::byte byte) { return byte == std::byte{0}; });
    return not_a_handle(empty ? "its bytes are all zero" : "its bytes begin with something else");
  }
  const std::uint16_t version = reader.u16();
  if (version != kHandleVersion) {
    return Error(Status::version_mismatch,
                 fmt::format("a handle of version {}, this process reads version {}: run the same release of Railyard "
                             "everywhere",
                             version, kHandleVersion));
  }
  const std::uint8_t flags = reader.u8();
  const std::size_t count = reader.u8();
  HandleContents contents;
  contents.port = reader.u16();
  const std::uint16_t unused = reader.u16();
  std::ranges::copy(reader.raw(contents.secret.size()), contents.secret.begin());
  contents.listener = reader.u64();
  contents.machine = reader.u64();
  for (std::size_t i = 0; i < kMostAddresses; ++i) {
    IpAddress address;
    std::ranges::copy(reader.raw(address.bytes.size()), address.bytes.begin());
    if (i < count) contents.addresses.push_back(address);
  }
  const Digest check = check_of(handle.bytes);
  if (!std::ranges::equal(reader.raw(kCheckBytes), std::span(check).first(kCheckBytes))) {
    return not_a_handle("its bytes were changed on their way");
  }
  if (flags != 0 || unused != 0 || count == 0 || count > kMostAddresses || contents.port == 0 ||
      contents.listener == 0) {
    return not_a_handle("its fields make no sense");
  }
  return contents;
}

bool same_listener(const Handle& a, const Handle& b) {
  return std::ranges::equal(std::span(a.bytes).first(kHandshakeAt), std::span(b.bytes).first(kHandshakeAt));
}

std::uint64_t handshake_of(const Handle& handle) {
  return ByteReader(std::span(handle.bytes).subspan(kHandshakeAt)).u64();
}

void set_handshake(Handle& handle, std::uint64_t handshake) {
  ByteWriter writer;
  writer.u64(handshake);
  std::ranges::copy(writer.bytes(), handle.bytes.begin() + kHandshakeAt);
}

}  // namespace railyard::message
