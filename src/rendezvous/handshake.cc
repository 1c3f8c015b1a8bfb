#include "rendezvous/handshake.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace railyard::rendezvous {

namespace {

constexpr std::string_view kSameRelease = "run the same release of Railyard everywhere";

}  // namespace

// ---- Both ends ----

Bytes Conversation::outgoing() const {
  if (queue_.empty()) return {};
  return Bytes(*queue_.front()).subspan(queue_offset_);
}

void Conversation::sent(std::size_t bytes) {
  while (bytes > 0 && !queue_.empty()) {
    const std::size_t chunk = std::min(bytes, queue_.front()->size() - queue_offset_);
    queue_offset_ += chunk;
    bytes -= chunk;
    if (queue_offset_ < queue_.front()->size()) return;
    queue_.pop_front();
    queue_offset_ = 0;
  }
}

void Conversation::send(const OutgoingFrame& frame) {
  queue_.push_back(frame.bytes);
  if (seal_) queue_.push_back(std::make_shared<const std::vector<std::byte>>(encode(seal_->next(frame.digest))));
}

void Conversation::expect_seal(Side other) {
  proven_ = true;
  reader_.set_most(most_frame_);
  reader_.expect_seal(Seal(key_, handshake_, other));
}

// ---- The acceptor's end ----

AcceptingEnd::News AcceptingEnd::next(Frame& frame) {
  while (phase_ != Phase::over) {
    switch (reader_.next(frame)) {
      case FrameReader::State::more:
        return News::nothing;
      case FrameReader::State::oversize:
        return fail(Fault::malformed, Status::invalid, "a frame of a length that nobody may send");
      case FrameReader::State::forged:
        return fail(Fault::forged, Status::refused, "a frame whose seal does not fit");
      case FrameReader::State::frame:
        break;
    }
    switch (phase_) {
      case Phase::hello:
        return handle_hello(frame);
      case Phase::proof:
        return handle_proof(frame);
      case Phase::open:
        return News::frame;
      case Phase::claimed:
      case Phase::knows_key:
      case Phase::over:
        break;
    }
  }
  return News::nothing;
}

AcceptingEnd::News AcceptingEnd::handle_hello(const Frame& frame) {
  auto hello = frame.type == FrameType::hello ? parse_hello(frame.payload) : std::nullopt;
  if (!hello) return fail(Fault::malformed, Status::invalid, "something that is no hello of Railyard");
  if (hello->version != kWireVersion) {
    fail(Fault::version, Status::version_mismatch, "a hello of another version");
    complaint_.text = fmt::format("version {} of the handshake does not fit version {} here: {}", hello->version,
                                  kWireVersion, kSameRelease);
    return News::fault;
  }
  if (hello->protocol != handshake_.protocol) {
    return fail(Fault::malformed, Status::invalid, "a hello that is meant for another kind of listener");
  }
  handshake_.claim = std::move(hello->claim);
  handshake_.connector_nonce = hello->nonce;
  phase_ = Phase::claimed;
  return News::hello;
}

void AcceptingEnd::challenge(std::string key, const Nonce& nonce) {
  key_ = std::move(key);
  handshake_.acceptor_nonce = nonce;
  send(FrameType::challenge, encode(Challenge{kWireVersion, nonce}));
  phase_ = Phase::proof;
}

AcceptingEnd::News AcceptingEnd::handle_proof(const Frame& frame) {
  const auto proof = frame.type == FrameType::proof ? parse_proof(frame.payload) : std::nullopt;
  if (!proof) return fail(Fault::malformed, Status::invalid, "something that is no proof of the key");
  if (!equal_in_constant_time(*proof, proof_of(key_, handshake_, Side::connector))) {
    return fail(Fault::wrong_key, Status::refused, "a proof of another key");
  }
  phase_ = Phase::knows_key;
  return News::proven;
}

void AcceptingEnd::let_in() {
  send(FrameType::proof, encode(proof_of(key_, handshake_, Side::acceptor)));
  seal_outgoing(Side::acceptor);
  expect_seal(Side::connector);
  phase_ = Phase::open;
}

void AcceptingEnd::refuse(const Complaint& complaint) {
  if (proven()) {
    send(FrameType::failure, encode(complaint, kMostText));
  } else {
    send(FrameType::refusal, encode(complaint, kMostRefusalText));
  }
  phase_ = Phase::over;
}

AcceptingEnd::News AcceptingEnd::fail(Fault fault, Status status, std::string text) {
  fault_ = fault;
  what_ = std::move(text);
  complaint_ = {status, -1, "received " + what_};
  return News::fault;
}

// ---- The connector's end ----

ConnectingEnd::ConnectingEnd(Options options, const Nonce& nonce)
    : Conversation({options.protocol, std::move(options.claim), nonce, {}}, options.most_frame),
      first_(std::move(options.first)) {
  key_ = std::move(options.key);
  send(FrameType::hello, encode(Hello{kWireVersion, handshake_.protocol, handshake_.claim, nonce}));
}

ConnectingEnd::News ConnectingEnd::fail(Failure::Kind kind, Status status, std::string text, std::int32_t peer) {
  failure_ = {kind, {status, peer, std::move(text)}};
  return News::failure;
}

ConnectingEnd::News ConnectingEnd::next(Frame& frame) {
  while (!failure_) {
    switch (reader_.next(frame)) {
      case FrameReader::State::more:
        return News::nothing;
      case FrameReader::State::oversize:
        return fail(Failure::Kind::foreign, Status::io, "what answers there is not Railyard");
      case FrameReader::State::forged:
        return fail(Failure::Kind::forged, Status::refused, "a message was changed on its way");
      case FrameReader::State::frame:
        if (const News news = handle(frame); news != News::nothing) return news;
    }
  }
  return News::failure;
}

ConnectingEnd::News ConnectingEnd::handle(Frame& frame) {
  if (phase_ == Phase::open) {
    if (frame.type != FrameType::failure) return News::frame;
    const auto told = parse_complaint(frame.payload, kMostText);
    if (told) return fail(Failure::Kind::told, told->status, told->text, told->peer);
    return fail(Failure::Kind::told, Status::io, "it sent a malformed failure");
  }
  if (frame.type == FrameType::refusal) {
    const auto refusal = parse_complaint(frame.payload, kMostRefusalText);
    if (refusal) return fail(Failure::Kind::refused, refusal->status, refusal->text, refusal->peer);
    return fail(Failure::Kind::foreign, Status::io, "it sent a malformed refusal");
  }
  return phase_ == Phase::challenge ? handle_challenge(frame) : handle_proof(frame);
}

ConnectingEnd::News ConnectingEnd::handle_challenge(const Frame& frame) {
  // With nobody listening on a port of the range that the system takes local ports from, a socket may end up talking to
  // itself, and hear its own hello.
  if (frame.type == FrameType::hello) return fail(Failure::Kind::nobody, Status::io, "nobody listens there");
  const auto challenge = frame.type == FrameType::challenge ? parse_challenge(frame.payload) : std::nullopt;
  if (!challenge) return fail(Failure::Kind::foreign, Status::io, "what answers there is not Railyard");
  if (challenge->version != kWireVersion) {
    return fail(Failure::Kind::version, Status::version_mismatch,
                fmt::format("it speaks version {} of the handshake, this process version {}: {}", challenge->version,
                            kWireVersion, kSameRelease));
  }
  handshake_.acceptor_nonce = challenge->nonce;
  send(FrameType::proof, encode(proof_of(key_, handshake_, Side::connector)));
  seal_outgoing(Side::connector);
  if (first_) send(*std::exchange(first_, std::nullopt));
  phase_ = Phase::proof;
  return News::nothing;
}

ConnectingEnd::News ConnectingEnd::handle_proof(const Frame& frame) {
  const auto proof = frame.type == FrameType::proof ? parse_proof(frame.payload) : std::nullopt;
  if (!proof || !equal_in_constant_time(*proof, proof_of(key_, handshake_, Side::acceptor))) {
    return fail(Failure::Kind::wrong_key, Status::refused, "what answers there does not know the key");
  }
  expect_seal(Side::acceptor);
  phase_ = Phase::open;
  return News::nothing;
}

}  // namespace railyard::rendezvous
