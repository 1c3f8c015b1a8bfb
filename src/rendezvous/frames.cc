#include "rendezvous/frames.hpp"

#include <algorithm>

#include "base/bytes.hpp"

namespace railyard::rendezvous {

namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kTagBytes = sizeof(Digest);

Digest read_digest(ByteReader& reader) {
  Digest digest{};
  std::ranges::copy(reader.raw(digest.size()), digest.begin());
  return digest;
}

/// HMAC under the key over a purpose and everything the two ends agreed on. Purposes keep proofs and keys apart.
Digest keyed(std::string_view key, std::string_view purpose, const Handshake& handshake) {
  ByteWriter message;
  message.text(purpose);
  message.u16(kWireVersion);
  message.u8(static_cast<std::uint8_t>(handshake.protocol));
  message.blob(handshake.claim);
  message.raw(handshake.connector_nonce);
  message.raw(handshake.acceptor_nonce);
  return hmac_sha256(std::as_bytes(std::span(key.data(), key.size())), message.bytes());
}

bool is_protocol(std::uint8_t value) {
  return value >= static_cast<std::uint8_t>(Protocol::job) && value <= static_cast<std::uint8_t>(Protocol::channel);
}

}  // namespace

std::vector<std::byte> encode(const Hello& hello) {
  ByteWriter writer;
  writer.u64(kMagic);
  writer.u16(hello.version);
  writer.u8(static_cast<std::uint8_t>(hello.protocol));
  writer.blob(hello.claim);
  writer.raw(hello.nonce);
  return writer.take();
}

std::vector<std::byte> encode(const Challenge& challenge) {
  ByteWriter writer;
  writer.u64(kMagic);
  writer.u16(challenge.version);
  writer.raw(challenge.nonce);
  return writer.take();
}

std::vector<std::byte> encode(const Digest& proof) { return {proof.begin(), proof.end()}; }

std::vector<std::byte> encode(const Complaint& complaint, std::size_t most_text) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(complaint.status));
  writer.i32(complaint.peer);
  writer.text(std::string_view(complaint.text).substr(0, most_text));
  return writer.take();
}

std::optional<Hello> parse_hello(Bytes payload) {
  ByteReader reader(payload);
  Hello hello;
  const bool known = reader.u64() == kMagic;
  hello.version = reader.u16();
  if (!known || !reader.ok()) return std::nullopt;
  if (hello.version != kWireVersion) return hello;
  const std::uint8_t protocol = reader.u8();
  const auto claim = reader.blob(kMostClaim);
  hello.nonce = read_digest(reader);
  if (!reader.done() || !is_protocol(protocol)) return std::nullopt;
  hello.protocol = static_cast<Protocol>(protocol);
  hello.claim.assign(claim.begin(), claim.end());
  return hello;
}

std::optional<Challenge> parse_challenge(Bytes payload) {
  ByteReader reader(payload);
  Challenge challenge;
  const bool known = reader.u64() == kMagic;
  challenge.version = reader.u16();
  if (!known || !reader.ok()) return std::nullopt;
  if (challenge.version != kWireVersion) return challenge;
  challenge.nonce = read_digest(reader);
  if (!reader.done()) return std::nullopt;
  return challenge;
}

std::optional<Digest> parse_proof(Bytes payload) {
  ByteReader reader(payload);
  const Digest digest = read_digest(reader);
  if (!reader.done()) return std::nullopt;
  return digest;
}

std::optional<Complaint> parse_complaint(Bytes payload, std::size_t most_text) {
  ByteReader reader(payload);
  Complaint complaint;
  const std::uint8_t status = reader.u8();
  complaint.peer = reader.i32();
  complaint.text = printable(reader.text(most_text));
  if (!reader.done() || status == static_cast<std::uint8_t>(Status::ok) ||
      status > static_cast<std::uint8_t>(Status::no_memory)) {
    return std::nullopt;
  }
  complaint.status = static_cast<Status>(status);
  return complaint;
}

Digest proof_of(std::string_view key, const Handshake& handshake, Side side) {
  return keyed(key, side == Side::connector ? "railyard connector proof" : "railyard acceptor proof", handshake);
}

Seal::Seal(std::string_view key, const Handshake& handshake, Side sender)
    : key_(keyed(key, sender == Side::connector ? "railyard connector seal" : "railyard acceptor seal", handshake)) {}

Digest Seal::next(const Digest& frame) {
  ByteWriter message;
  message.u64(number_++);
  message.raw(frame);
  return hmac_sha256(key_, message.bytes());
}

OutgoingFrame make_frame(FrameType type, Bytes payload) {
  ByteWriter writer;
  writer.u32(static_cast<std::uint32_t>(payload.size() + 1));
  writer.u8(static_cast<std::uint8_t>(type));
  writer.raw(payload);
  OutgoingFrame frame;
  frame.digest = sha256(writer.bytes());
  frame.bytes = std::make_shared<const std::vector<std::byte>>(writer.take());
  return frame;
}

void FrameReader::feed(Bytes bytes) {
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

FrameReader::State FrameReader::next(Frame& frame) {
  const auto bytes = std::span<const std::byte>(bytes_).subspan(taken_);
  ByteReader reader(bytes);
  const std::size_t length = reader.u32();
  if (!reader.ok()) return State::more;
  if (length == 0 || length > most_) return State::oversize;
  const std::size_t whole = kLengthBytes + length + (seal_ ? kTagBytes : 0);
  if (bytes.size() < whole) return State::more;
  if (seal_) {
    const Digest expected = seal_->next(sha256(bytes.first(kLengthBytes + length)));
    if (!equal_in_constant_time(expected, bytes.subspan(kLengthBytes + length, kTagBytes))) return State::forged;
  }
  frame.type = static_cast<FrameType>(reader.u8());
  const auto payload = reader.raw(length - 1);
  frame.payload.assign(payload.begin(), payload.end());
  taken_ += whole;
  return State::frame;
}

std::string printable(std::string_view text) {
  std::string result(text);
  std::ranges::replace_if(
      result, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return result;
}

}  // namespace railyard::rendezvous
