#include "message/setup_messages.hpp"

#include <fmt/format.h>

#include <cstring>

#include "base/bytes.hpp"
#include "transport/wire.hpp"

namespace railyard::message {
namespace {

constexpr std::uint32_t kHelloMagic = 0x6f6c6c65;    // "ello"
constexpr std::uint32_t kWelcomeMagic = 0x636c6577;  // "welc"
constexpr std::uint16_t kVersion = 2;
constexpr std::size_t kMostContribution = 200 * 1024;

void begin(ByteWriter& writer, std::uint32_t magic, const Identity& identity) {
  writer.u32(magic);
  writer.u16(kVersion);
  writer.raw(std::as_bytes(std::span(identity.bytes)));
}

Result<Identity> begin(ByteReader& reader, std::uint32_t magic) {
  if (reader.u32() != magic) return Error(Status::invalid, "not a set-up message that opens a channel");
  if (const std::uint16_t version = reader.u16(); reader.ok() && version != kVersion) {
    return Error(Status::version_mismatch,
                 fmt::format("the peer's channels are of version {}, this library's of {}: use one version of Railyard "
                             "in a job",
                             version, kVersion));
  }
  Identity identity;
  const auto bytes = reader.raw(identity.bytes.size());
  if (!bytes.empty()) std::memcpy(identity.bytes.data(), bytes.data(), bytes.size());
  return identity;
}

void read_contribution(ByteReader& reader, std::vector<std::byte>& contribution) {
  const auto bytes = reader.blob(kMostContribution);
  contribution.assign(bytes.begin(), bytes.end());
}

Error cut_short() { return Error(Status::invalid, "a set-up message that is cut short or too long"); }

}  // namespace

std::vector<std::byte> write_setup_message(const Hello& hello) {
  ByteWriter writer;
  begin(writer, kHelloMagic, hello.identity);
  writer.u32(hello.worker_index);
  writer.u32(hello.service_class);
  writer.u32(hello.shared_links);
  writer.u16(hello.flow);
  writer.u64(hello.session);
  writer.u32(hello.number);
  writer.u64(hello.instance);
  writer.blob(hello.contribution);
  return writer.take();
}

Result<Hello> read_hello(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  auto identity = begin(reader, kHelloMagic);
  if (!identity) return std::move(identity.error());
  Hello hello;
  hello.identity = *identity;
  hello.worker_index = reader.u32();
  hello.service_class = reader.u32();
  hello.shared_links = reader.u32();
  hello.flow = reader.u16();
  hello.session = reader.u64();
  hello.number = reader.u32();
  hello.instance = reader.u64();
  read_contribution(reader, hello.contribution);
  if (!reader.done()) return cut_short();
  return hello;
}

std::vector<std::byte> write_setup_message(const Welcome& welcome) {
  ByteWriter writer;
  begin(writer, kWelcomeMagic, welcome.identity);
  writer.u32(welcome.worker_index);
  writer.u16(welcome.flow);
  writer.u64(welcome.session);
  writer.u32(welcome.number);
  writer.u64(welcome.instance);
  writer.u64(welcome.digest);
  writer.blob(welcome.contribution);
  return writer.take();
}

Result<Welcome> read_welcome(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  auto identity = begin(reader, kWelcomeMagic);
  if (!identity) return std::move(identity.error());
  Welcome welcome;
  welcome.identity = *identity;
  welcome.worker_index = reader.u32();
  welcome.flow = reader.u16();
  welcome.session = reader.u64();
  welcome.number = reader.u32();
  welcome.instance = reader.u64();
  welcome.digest = reader.u64();
  read_contribution(reader, welcome.contribution);
  if (!reader.done()) return cut_short();
  return welcome;
}

}  // namespace railyard::message
