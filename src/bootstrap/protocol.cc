#include "bootstrap/protocol.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.hpp"

namespace railyard::bootstrap {

namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kTagBytes = sizeof(Digest);
constexpr std::size_t kMostListed = 16;

Digest read_digest(ByteReader& reader) {
  Digest digest{};
  const auto bytes = reader.raw(digest.size());
  std::ranges::copy(bytes, digest.begin());
  return digest;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// HMAC under the job key over a purpose and everything the two ends agreed on. Purposes keep proofs and keys apart.
Digest keyed(std::string_view job_key, std::string_view purpose, const Handshake& handshake) {
  ByteWriter message;
  message.text(purpose);
  message.u16(kWireVersion);
  message.i32(handshake.rank);
  message.i32(handshake.size);
  message.raw(handshake.client_nonce);
  message.raw(handshake.server_nonce);
  return hmac_sha256(bytes_of(job_key), message.bytes());
}

bool is_call(std::uint8_t value) {
  return value >= static_cast<std::uint8_t>(Call::join) && value <= static_cast<std::uint8_t>(Call::barrier);
}

}  // namespace

const char* to_string(Call call) {
  switch (call) {
    case Call::join:
      return "join";
    case Call::allgather:
      return "allgather";
    case Call::barrier:
      return "barrier";
  }
  return "unknown call";
}

std::vector<std::byte> encode(const Hello& hello) {
  ByteWriter writer;
  writer.u64(kMagic);
  writer.u16(hello.version);
  writer.i32(hello.rank);
  writer.i32(hello.size);
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

std::vector<std::byte> encode(const Enter& enter) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(enter.call));
  writer.u64(enter.sequence);
  writer.u64(enter.timeout_ns);
  writer.blob(enter.contribution);
  return writer.take();
}

std::vector<std::byte> encode(const Digest& proof) { return {proof.begin(), proof.end()}; }

std::vector<std::byte> encode_result(Call call, std::uint64_t sequence,
                                     std::span<const std::vector<std::byte>> contributions) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(call));
  writer.u64(sequence);
  writer.u32(static_cast<std::uint32_t>(contributions.size()));
  for (const auto& contribution : contributions) writer.blob(contribution);
  return writer.take();
}

std::vector<std::byte> encode(const Complaint& complaint, std::size_t most_text) {
  ByteWriter writer;
  writer.u8(static_cast<std::uint8_t>(complaint.status));
  writer.i32(complaint.peer);
  writer.text(std::string_view(complaint.text).substr(0, most_text));
  return writer.take();
}

std::optional<Hello> parse_hello(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Hello hello;
  const bool known = reader.u64() == kMagic;
  hello.version = reader.u16();
  if (!known || !reader.ok()) return std::nullopt;
  if (hello.version != kWireVersion) return hello;
  hello.rank = reader.i32();
  hello.size = reader.i32();
  hello.nonce = read_digest(reader);
  if (!reader.done() || hello.size < 1 || hello.size > kMostRanks || hello.rank < 0 || hello.rank >= hello.size) {
    return std::nullopt;
  }
  return hello;
}

std::optional<Challenge> parse_challenge(std::span<const std::byte> payload) {
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

std::optional<Enter> parse_enter(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Enter enter;
  const std::uint8_t call = reader.u8();
  enter.sequence = reader.u64();
  enter.timeout_ns = reader.u64();
  const auto contribution = reader.blob(kMostContribution);
  if (!reader.done() || !is_call(call)) return std::nullopt;
  enter.call = static_cast<Call>(call);
  enter.contribution.assign(contribution.begin(), contribution.end());
  return enter;
}

std::optional<Digest> parse_proof(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  const Digest digest = read_digest(reader);
  if (!reader.done()) return std::nullopt;
  return digest;
}

std::optional<GatherResult> parse_result(std::span<const std::byte> payload, std::int32_t size) {
  ByteReader reader(payload);
  GatherResult result;
  const std::uint8_t call = reader.u8();
  result.sequence = reader.u64();
  const std::uint32_t count = reader.u32();
  if (!reader.ok() || !is_call(call)) return std::nullopt;
  result.call = static_cast<Call>(call);
  // Only an allgather carries contributions: one of each rank. Checked before anything is allocated for them.
  const std::uint32_t expected = result.call == Call::allgather ? static_cast<std::uint32_t>(size) : 0;
  if (count != expected || reader.remaining() / kLengthBytes < count) return std::nullopt;
  result.contributions.reserve(count);
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    const auto contribution = reader.blob(kMostContribution);
    result.contributions.emplace_back(contribution.begin(), contribution.end());
  }
  if (!reader.done()) return std::nullopt;
  return result;
}

std::optional<Complaint> parse_complaint(std::span<const std::byte> payload, std::size_t most_text) {
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

Digest proof_of(std::string_view job_key, const Handshake& handshake, Side side) {
  return keyed(job_key, side == Side::client ? "railyard client proof" : "railyard server proof", handshake);
}

Seal::Seal(std::string_view job_key, const Handshake& handshake, Side sender)
    : key_(keyed(job_key, sender == Side::client ? "railyard client seal" : "railyard server seal", handshake)) {}

Digest Seal::next(const Digest& frame) {
  ByteWriter message;
  message.u64(number_++);
  message.raw(frame);
  return hmac_sha256(key_, message.bytes());
}

OutgoingFrame make_frame(FrameType type, std::span<const std::byte> payload) {
  ByteWriter writer;
  writer.u32(static_cast<std::uint32_t>(payload.size() + 1));
  writer.u8(static_cast<std::uint8_t>(type));
  writer.raw(payload);
  OutgoingFrame frame;
  frame.digest = sha256(writer.bytes());
  frame.bytes = std::make_shared<const std::vector<std::byte>>(writer.take());
  return frame;
}

void FrameReader::feed(std::span<const std::byte> bytes) {
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

std::string list_ranks(std::span<const std::int32_t> ranks) {
  const std::size_t shown = std::min(ranks.size(), kMostListed);
  std::string list;
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) list += i + 1 == ranks.size() ? " and " : ", ";
    list += fmt::format("rank {}", ranks[i]);
  }
  if (shown < ranks.size()) list += fmt::format(" and {} more", ranks.size() - shown);
  return list;
}

std::string show_duration(std::uint64_t nanoseconds) {
  const double milliseconds = std::round(static_cast<double>(nanoseconds) / 1e6);
  if (milliseconds < 1000) return fmt::format("{:.0f} ms", milliseconds);
  // Tenths matter up to ten seconds only: what is left of a minute after connecting should still read as a minute.
  if (milliseconds < 10'000) return fmt::format("{:g} s", std::round(milliseconds / 100) / 10);
  return fmt::format("{:.0f} s", milliseconds / 1000);
}

}  // namespace railyard::bootstrap
