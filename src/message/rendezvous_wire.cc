#include "message/rendezvous_wire.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.hpp"
#include "message/rendezvous.hpp"

namespace railyard::message {

using bootstrap::Frame;
using bootstrap::FrameReader;
using bootstrap::FrameType;
using bootstrap::Nonce;
using bootstrap::Side;

namespace {

constexpr std::uint64_t kRendezvousMagic = 0x52455452'4f505952ULL;  // "RYPORTER" in the order the bytes travel
/// A set-up message, or the host's refusal, with the frame's type.
constexpr std::size_t kMostSetupMessageFrame = kMostSetupMessage + 1;
static_assert(kMostSetupMessageFrame > bootstrap::kMostText + 64);

void read_nonce(ByteReader& reader, Nonce& nonce) { std::ranges::copy(reader.raw(nonce.size()), nonce.begin()); }

std::string other_version(std::uint16_t theirs, std::string_view who) {
  return fmt::format(
      "{} speaks version {} of the handshake protocol, this process version {}: run the same release of "
      "Railyard everywhere",
      who, theirs, kRendezvousVersion);
}

}  // namespace

std::vector<std::byte> encode(const ConnectionRequest& request) {
  ByteWriter writer;
  writer.u64(kRendezvousMagic);
  writer.u16(request.version);
  writer.u64(request.listener);
  writer.raw(request.nonce);
  return writer.take();
}

std::vector<std::byte> encode(const Challenge& challenge) {
  ByteWriter writer;
  writer.u64(kRendezvousMagic);
  writer.u16(challenge.version);
  writer.raw(challenge.nonce);
  return writer.take();
}

std::optional<ConnectionRequest> parse_connection_request(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  ConnectionRequest request;
  const bool known = reader.u64() == kRendezvousMagic;
  request.version = reader.u16();
  if (!known || !reader.ok()) return std::nullopt;
  if (request.version != kRendezvousVersion) return request;
  request.listener = reader.u64();
  read_nonce(reader, request.nonce);
  if (!reader.done()) return std::nullopt;
  return request;
}

std::optional<Challenge> parse_challenge(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Challenge challenge;
  const bool known = reader.u64() == kRendezvousMagic;
  challenge.version = reader.u16();
  if (!known || !reader.ok()) return std::nullopt;
  if (challenge.version != kRendezvousVersion) return challenge;
  read_nonce(reader, challenge.nonce);
  if (!reader.done()) return std::nullopt;
  return challenge;
}

std::string listener_key(const Secret& secret, std::uint64_t listener) {
  ByteWriter writer;
  writer.text("railyard door");
  writer.u64(listener);
  writer.raw(secret);
  const auto bytes = writer.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// ---- Both ends ----

void Conversation::send(FrameType type, std::span<const std::byte> payload) {
  const auto frame = bootstrap::make_frame(type, payload);
  outgoing_.insert(outgoing_.end(), frame.bytes->begin(), frame.bytes->end());
  if (!seal_) return;
  const Digest tag = seal_->next(frame.digest);
  outgoing_.insert(outgoing_.end(), tag.begin(), tag.end());
}

void Conversation::sent(std::size_t bytes) {
  sent_ += bytes;
  if (sent_ < outgoing_.size()) return;
  outgoing_ = {};  // gives the memory of a set-up message back
  sent_ = 0;
}

void Conversation::expect_seal(Side other) {
  reader_.set_most(kMostSetupMessageFrame);
  reader_.expect_seal(bootstrap::Seal(key_, handshake_, other));
}

// ---- The listener's end ----

ListenerHandshake::ListenerHandshake(const Nonce& nonce) { handshake_.server_nonce = nonce; }

ListenerHandshake::News ListenerHandshake::next(const FindListener& find_listener) {
  Frame frame;
  while (phase_ != Phase::over) {
    switch (reader_.next(frame)) {
      case FrameReader::State::more:
        return News::nothing;
      case FrameReader::State::oversize:
        return fail(Fault::malformed, Status::invalid, "received a frame of a length that nobody may send");
      case FrameReader::State::forged:
        return fail(Fault::forged, Status::refused, "received a set-up message that was changed on its way");
      case FrameReader::State::frame:
        if (const News news = handle(frame, find_listener); news != News::nothing) return news;
    }
  }
  return News::nothing;
}

ListenerHandshake::News ListenerHandshake::handle(Frame& frame, const FindListener& find_listener) {
  switch (phase_) {
    case Phase::request:
      return handle_request(frame, find_listener);
    case Phase::proof:
      return handle_proof(frame);
    case Phase::hello:
    case Phase::deciding:
    case Phase::ready:
      return handle_setup_message(frame);
    case Phase::over:
      break;
  }
  return News::nothing;
}

ListenerHandshake::News ListenerHandshake::handle_request(const Frame& frame, const FindListener& find_listener) {
  const auto request = frame.type == FrameType::hello ? parse_connection_request(frame.payload) : std::nullopt;
  if (!request)
    return fail(Fault::malformed, Status::invalid, "received something that is no connection request of Railyard");
  if (request->version != kRendezvousVersion) {
    return fail(
        Fault::version, Status::version_mismatch,
        fmt::format("the connector speaks version {} of the handshake protocol, the listener version {}: run the "
                    "same release of Railyard everywhere",
                    request->version, kRendezvousVersion));
  }
  const Secret* const secret = find_listener(request->listener);
  if (secret == nullptr) {
    return fail(Fault::unknown_listener, Status::not_found,
                "there is no such listener here: it was closed, or the handle is of another process");
  }
  listener_ = request->listener;
  key_ = listener_key(*secret, listener_);
  handshake_.client_nonce = request->nonce;
  send(FrameType::challenge, encode(Challenge{kRendezvousVersion, handshake_.server_nonce}));
  phase_ = Phase::proof;
  return News::nothing;
}

ListenerHandshake::News ListenerHandshake::handle_proof(const Frame& frame) {
  const auto proof = frame.type == FrameType::proof ? bootstrap::parse_proof(frame.payload) : std::nullopt;
  if (!proof) return fail(Fault::malformed, Status::invalid, "received something that is no proof of the secret");
  if (!equal_in_constant_time(*proof, proof_of(key_, handshake_, Side::client))) {
    return fail(Fault::forged, Status::refused, "the handle's secret is not the listener's");
  }
  send(FrameType::proof, bootstrap::encode(proof_of(key_, handshake_, Side::server)));
  seal_outgoing(Side::server);
  expect_seal(Side::client);
  phase_ = Phase::hello;
  return News::nothing;
}

ListenerHandshake::News ListenerHandshake::handle_setup_message(Frame& frame) {
  const bool hello = phase_ == Phase::hello && frame.type == FrameType::enter;
  const bool ready = phase_ == Phase::ready && frame.type == FrameType::leave;
  if (!hello && !ready) {
    return fail(Fault::malformed, Status::invalid, "received a message that makes no sense at this point");
  }
  setup_message_ = std::move(frame.payload);
  phase_ = hello ? Phase::deciding : Phase::over;
  return hello ? News::hello : News::ready;
}

void ListenerHandshake::answer(std::span<const std::byte> welcome) {
  if (phase_ != Phase::deciding) return;
  send(FrameType::result, welcome);
  phase_ = Phase::ready;
}

void ListenerHandshake::refuse(Status status, std::string_view why) {
  if (phase_ == Phase::over) return;
  const bootstrap::Complaint complaint{status, -1, std::string(why)};
  if (seal_) {
    send(FrameType::failure, bootstrap::encode(complaint, bootstrap::kMostText));
  } else {
    send(FrameType::refusal, bootstrap::encode(complaint, bootstrap::kMostRefusalText));
  }
  phase_ = Phase::over;
}

ListenerHandshake::News ListenerHandshake::fail(Fault fault, Status status, std::string why) {
  refuse(status, why);
  fault_ = fault;
  fault_text_ = std::move(why);
  return News::fault;
}

// ---- The connector's end ----

ConnectorHandshake::ConnectorHandshake(const Secret& secret, std::uint64_t listener, const Nonce& nonce,
                                       bootstrap::SharedBytes hello)
    : hello_(std::move(hello)) {
  key_ = listener_key(secret, listener);
  handshake_.client_nonce = nonce;
  send(FrameType::hello, encode(ConnectionRequest{kRendezvousVersion, listener, nonce}));
}

void ConnectorHandshake::fail(Status status, std::string why) {
  if (!failure_) failure_ = Error(status, std::move(why), {.operation = "connect"});
}

void ConnectorHandshake::advance() {
  Frame frame;
  while (!failure_) {
    switch (reader_.next(frame)) {
      case FrameReader::State::more:
        return;
      case FrameReader::State::oversize:
        return fail(Status::io, "what answers there is no listener of Railyard");
      case FrameReader::State::forged:
        return fail(Status::refused, "a set-up message of the listener was changed on its way");
      case FrameReader::State::frame:
        handle(frame);
    }
  }
}

void ConnectorHandshake::handle(Frame& frame) {
  // This refusal comes from one who has proven nothing: believed, because the worst it can do is what cutting the
  // connection does.
  if (frame.type == FrameType::refusal && (phase_ == Phase::challenge || phase_ == Phase::proof)) {
    const auto refusal = bootstrap::parse_complaint(frame.payload, bootstrap::kMostRefusalText);
    return refusal ? fail(refusal->status, refusal->text) : fail(Status::io, "it sent a malformed refusal");
  }
  switch (phase_) {
    case Phase::challenge:
      return handle_challenge(frame);
    case Phase::proof:
      return handle_proof(frame);
    case Phase::answer:
      return handle_answer(frame);
    case Phase::done:
      break;
  }
  // After its welcome a listener has nothing to say but that it gave up.
  const auto complaint =
      frame.type == FrameType::failure ? bootstrap::parse_complaint(frame.payload, bootstrap::kMostText) : std::nullopt;
  fail(complaint ? complaint->status : Status::io,
       complaint ? complaint->text : "it sent a message that makes no sense at this point");
}

void ConnectorHandshake::handle_challenge(const Frame& frame) {
  // With nobody listening on a port of the range that the system takes local ports from, a socket may end up talking to
  // itself, and hear its own request.
  if (frame.type == FrameType::hello) return fail(Status::io, "nobody listens there");
  const auto challenge = frame.type == FrameType::challenge ? parse_challenge(frame.payload) : std::nullopt;
  if (!challenge) return fail(Status::io, "what answers there is no listener of Railyard");
  if (challenge->version != kRendezvousVersion) {
    return fail(Status::version_mismatch, other_version(challenge->version, "the listener"));
  }
  handshake_.server_nonce = challenge->nonce;
  send(FrameType::proof, bootstrap::encode(proof_of(key_, handshake_, Side::client)));
  seal_outgoing(Side::client);
  send(FrameType::enter, *hello_);
  hello_.reset();
  phase_ = Phase::proof;
}

void ConnectorHandshake::handle_proof(const Frame& frame) {
  const auto proof = frame.type == FrameType::proof ? bootstrap::parse_proof(frame.payload) : std::nullopt;
  if (!proof || !equal_in_constant_time(*proof, proof_of(key_, handshake_, Side::server))) {
    return fail(Status::refused, "what answers there does not know the handle's secret");
  }
  expect_seal(Side::server);
  phase_ = Phase::answer;
}

void ConnectorHandshake::handle_answer(Frame& frame) {
  if (frame.type == FrameType::result) {
    welcome_ = std::move(frame.payload);
    phase_ = Phase::done;
    return;
  }
  const auto refusal =
      frame.type == FrameType::failure ? bootstrap::parse_complaint(frame.payload, bootstrap::kMostText) : std::nullopt;
  if (!refusal) return fail(Status::io, "it sent a message that makes no sense at this point");
  refused_by_host_ = true;
  fail(refusal->status, refusal->text);
}

}  // namespace railyard::message
