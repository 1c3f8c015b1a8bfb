#include "fabric/tcp/handshake.hpp"

#include <algorithm>
#include <cstring>

#include "base/bytes.hpp"

namespace railyard::fabric::tcp {

namespace {

constexpr std::uint32_t kHandshakeMagic = 0x48545952;  // "RYTH"
constexpr std::uint8_t kHandshakeVersion = 2;

enum class Message : std::uint8_t { hello = 1, challenge, proof, verdict };

constexpr std::uint8_t kHelloInsists = 1;

void put_prefix(ByteWriter& writer, Message message, std::uint8_t detail) {
  writer.u32(kHandshakeMagic);
  writer.u8(kHandshakeVersion);
  writer.u8(static_cast<std::uint8_t>(message));
  writer.u8(detail);
  writer.u8(0);
}

/// The detail of a message of that kind; nothing if it is none.
std::optional<std::uint8_t> take_prefix(ByteReader& reader, Message message) {
  const bool ours = reader.u32() == kHandshakeMagic && reader.u8() == kHandshakeVersion &&
                    reader.u8() == static_cast<std::uint8_t>(message);
  const std::uint8_t detail = reader.u8();
  const bool plain = reader.u8() == 0;
  return ours && plain && reader.ok() ? std::optional(detail) : std::nullopt;
}

void put_hello(ByteWriter& writer, const Hello& hello) {
  put_prefix(writer, Message::hello, hello.insists ? kHelloInsists : 0);
  writer.raw(hello.nonce);
  writer.raw(hello.from);
  std::array<std::byte, kTagBytes> tag{};
  pack_tag(hello.tag, tag);
  writer.raw(tag);
}

template <std::size_t kBytes>
std::array<std::byte, kBytes> fixed(const ByteWriter& writer) {
  std::array<std::byte, kBytes> bytes{};
  std::copy_n(writer.bytes().begin(), std::min(kBytes, writer.size()), bytes.begin());
  return bytes;
}

/// A MAC names the message that it is in: none can be used in place of another.
Digest mac_of(Message message, std::uint8_t detail, const Hello& hello, const Nonce& challenge,
              std::span<const std::byte> secret) {
  ByteWriter writer;
  put_prefix(writer, message, detail);
  put_hello(writer, hello);
  writer.raw(challenge);
  return hmac_sha256(secret, writer.bytes());
}

template <typename T>
void take_array(ByteReader& reader, T& array) {
  const auto bytes = reader.raw(array.size());
  std::copy(bytes.begin(), bytes.end(), array.begin());
}

}  // namespace

void pack_tag(const LinkTag& tag, std::span<std::byte, kTagBytes> bytes) {
  std::memcpy(bytes.data(), &tag.id, sizeof tag.id);
  std::memcpy(bytes.data() + sizeof tag.id, &tag.facing, sizeof tag.facing);
  std::memcpy(bytes.data() + sizeof tag.id + sizeof tag.facing, &tag.epoch, sizeof tag.epoch);
  bytes.back() = static_cast<std::byte>(tag.traffic_class);
}

LinkTag parse_tag(std::span<const std::byte, kTagBytes> bytes) {
  LinkTag tag;
  std::memcpy(&tag.id, bytes.data(), sizeof tag.id);
  std::memcpy(&tag.facing, bytes.data() + sizeof tag.id, sizeof tag.facing);
  std::memcpy(&tag.epoch, bytes.data() + sizeof tag.id + sizeof tag.facing, sizeof tag.epoch);
  tag.traffic_class = std::to_integer<std::uint8_t>(bytes.back());
  return tag;
}

std::array<std::byte, kHelloBytes> Hello::pack(std::span<const std::byte> secret) const {
  ByteWriter writer;
  put_hello(writer, *this);
  writer.raw(mac_of(Message::hello, 0, *this, {}, secret));
  return fixed<kHelloBytes>(writer);
}

std::optional<Hello> Hello::parse(std::span<const std::byte, kHelloBytes> bytes, std::span<const std::byte> secret) {
  ByteReader reader(bytes);
  const auto detail = take_prefix(reader, Message::hello);
  if (!detail || *detail > kHelloInsists) return std::nullopt;
  Hello hello;
  hello.insists = *detail == kHelloInsists;
  take_array(reader, hello.nonce);
  take_array(reader, hello.from);
  std::array<std::byte, kTagBytes> tag{};
  take_array(reader, tag);
  hello.tag = parse_tag(tag);
  const auto mac = reader.raw(kMacBytes);
  if (!reader.done() || !equal_in_constant_time(mac, mac_of(Message::hello, 0, hello, {}, secret))) return std::nullopt;
  return hello;
}

std::array<std::byte, kProofBytes> Transcript::proof(std::span<const std::byte> secret) const {
  ByteWriter writer;
  put_prefix(writer, Message::proof, 0);
  writer.raw(mac_of(Message::proof, 0, hello, challenge, secret));
  return fixed<kProofBytes>(writer);
}

bool Transcript::proves(std::span<const std::byte, kProofBytes> bytes, std::span<const std::byte> secret) const {
  ByteReader reader(bytes);
  const auto detail = take_prefix(reader, Message::proof);
  const auto mac = reader.raw(kMacBytes);
  return detail == 0 && reader.done() &&
         equal_in_constant_time(mac, mac_of(Message::proof, 0, hello, challenge, secret));
}

std::array<std::byte, kVerdictBytes> Transcript::verdict(Verdict verdict, std::span<const std::byte> secret) const {
  ByteWriter writer;
  const auto detail = static_cast<std::uint8_t>(verdict);
  put_prefix(writer, Message::verdict, detail);
  writer.raw(mac_of(Message::verdict, detail, hello, challenge, secret));
  return fixed<kVerdictBytes>(writer);
}

std::array<std::byte, kChallengeBytes> pack_challenge(const Nonce& nonce) {
  ByteWriter writer;
  put_prefix(writer, Message::challenge, 0);
  writer.raw(nonce);
  return fixed<kChallengeBytes>(writer);
}

std::optional<Nonce> parse_challenge(std::span<const std::byte, kChallengeBytes> bytes) {
  ByteReader reader(bytes);
  const auto detail = take_prefix(reader, Message::challenge);
  Nonce nonce{};
  take_array(reader, nonce);
  return detail == 0 && reader.done() ? std::optional(nonce) : std::nullopt;
}

std::array<std::byte, kVerdictBytes> pack_rejection() {
  ByteWriter writer;
  put_prefix(writer, Message::verdict, static_cast<std::uint8_t>(Verdict::strange));
  return fixed<kVerdictBytes>(writer);
}

bool is_verdict(std::span<const std::byte, kPrefixBytes> prefix) {
  ByteReader reader(prefix);
  return take_prefix(reader, Message::verdict).has_value();
}

std::optional<ReceivedVerdict> parse_verdict(std::span<const std::byte, kVerdictBytes> bytes,
                                             const Transcript& transcript, std::span<const std::byte> secret) {
  ByteReader reader(bytes);
  const auto detail = take_prefix(reader, Message::verdict);
  const auto mac = reader.raw(kMacBytes);
  if (!detail || *detail > static_cast<std::uint8_t>(Verdict::misrouted) || !reader.done()) return std::nullopt;
  ReceivedVerdict received;
  received.verdict = static_cast<Verdict>(*detail);
  received.authentic =
      equal_in_constant_time(mac, mac_of(Message::verdict, *detail, transcript.hello, transcript.challenge, secret));
  return received;
}

}  // namespace railyard::fabric::tcp
