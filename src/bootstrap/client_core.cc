#include "bootstrap/client_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace railyard::bootstrap {

ClientCore::ClientCore(ClientCoreOptions options)
    : options_(std::move(options)),
      reader_(kMostHandshake),
      handshake_{options_.rank, options_.size, options_.nonce, {}} {
  send(FrameType::hello, encode(Hello{kWireVersion, options_.rank, options_.size, options_.nonce}));
}

void ClientCore::send(FrameType type, std::span<const std::byte> payload) {
  const OutgoingFrame frame = make_frame(type, payload);
  queue_.push_back(*frame.bytes);
  if (seal_) queue_.push_back(encode(seal_->next(frame.digest)));
}

void ClientCore::fail(Status status, std::string message, std::int32_t peer) {
  if (!failure_) failure_ = Error(status, std::move(message), {.peer = peer, .operation = "bootstrap"});
}

void ClientCore::received(std::span<const std::byte> bytes) {
  if (failure_) return;
  reader_.feed(bytes);
  Frame frame;
  while (!failure_) {
    switch (reader_.next(frame)) {
      case FrameReader::State::more:
        return;
      case FrameReader::State::oversize:
        return fail(Status::io,
                    fmt::format("what answers at {} is no rendezvous of Railyard: it sent a frame of a length "
                                "that nobody may send; check RAILYARD_RENDEZVOUS",
                                options_.where));
      case FrameReader::State::forged:
        return fail(Status::refused,
                    fmt::format("a message from the rendezvous at {} was changed on its way", options_.where));
      case FrameReader::State::frame:
        handle(frame);
    }
  }
}

void ClientCore::handle(const Frame& frame) {
  // A refusal comes from one who has not proven anything yet: believed, because the worst it can do is what cutting the
  // connection does.
  if (frame.type == FrameType::refusal && phase_ != Phase::member) {
    const auto refusal = parse_complaint(frame.payload, kMostRefusalText);
    if (!refusal) return fail(Status::io, fmt::format("the rendezvous at {} sent a malformed refusal", options_.where));
    return fail(refusal->status,
                fmt::format("the rendezvous at {} refused rank {}: {}", options_.where, options_.rank, refusal->text),
                refusal->peer);
  }
  switch (phase_) {
    case Phase::challenge:
      return handle_challenge(frame);
    case Phase::welcome:
      return handle_welcome(frame);
    case Phase::member:
      return handle_member(frame);
  }
}

void ClientCore::handle_challenge(const Frame& frame) {
  const auto challenge = frame.type == FrameType::challenge ? parse_challenge(frame.payload) : std::nullopt;
  if (!challenge) {
    return fail(Status::io, fmt::format("what answers at {} is no rendezvous of Railyard; check RAILYARD_RENDEZVOUS",
                                        options_.where));
  }
  if (challenge->version != kWireVersion) {
    return fail(
        Status::version_mismatch,
        fmt::format("the rendezvous at {} speaks wire version {}, this process version {}: run the same release of "
                    "Railyard everywhere",
                    options_.where, challenge->version, kWireVersion));
  }
  handshake_.server_nonce = challenge->nonce;
  send(FrameType::proof, encode(proof_of(options_.job_key, handshake_, Side::client)));
  phase_ = Phase::welcome;
}

void ClientCore::handle_welcome(const Frame& frame) {
  const auto proof = frame.type == FrameType::welcome ? parse_proof(frame.payload) : std::nullopt;
  if (!proof || !equal_in_constant_time(*proof, proof_of(options_.job_key, handshake_, Side::server))) {
    return fail(
        Status::refused,
        fmt::format("the rendezvous at {} does not know the job key: set RAILYARD_JOB_KEY to the same secret on "
                    "every rank, and check RAILYARD_RENDEZVOUS",
                    options_.where));
  }
  phase_ = Phase::member;
  reader_.set_most(kMostFrameToClient);
  reader_.expect_seal(Seal(options_.job_key, handshake_, Side::server));
  seal_.emplace(options_.job_key, handshake_, Side::client);
}

void ClientCore::handle_member(const Frame& frame) {
  if (frame.type == FrameType::failure) {
    if (const auto failure = parse_complaint(frame.payload, kMostText)) {
      return fail(failure->status, failure->text, failure->peer);
    }
  }
  auto result = frame.type == FrameType::result ? parse_result(frame.payload, options_.size) : std::nullopt;
  if (!result || !call_ || result->call != *call_ || result->sequence != sequence_) {
    return fail(Status::io,
                fmt::format("the rendezvous at {} sent a message that makes no sense at this point", options_.where));
  }
  result_ = std::move(result);
  call_.reset();
  ++sequence_;
}

void ClientCore::enter(Call call, std::uint64_t timeout_ns, std::vector<std::byte> contribution) {
  call_ = call;
  send(FrameType::enter, encode(Enter{call, sequence_, timeout_ns, std::move(contribution)}));
}

std::optional<GatherResult> ClientCore::take_result() { return std::exchange(result_, std::nullopt); }

void ClientCore::leave() {
  if (welcomed()) send(FrameType::leave, {});
}

std::span<const std::byte> ClientCore::outgoing() const {
  if (queue_.empty()) return {};
  return std::span<const std::byte>(queue_.front()).subspan(queue_offset_);
}

void ClientCore::sent(std::size_t bytes) {
  while (bytes > 0 && !queue_.empty()) {
    const std::size_t chunk = std::min(bytes, queue_.front().size() - queue_offset_);
    queue_offset_ += chunk;
    bytes -= chunk;
    if (queue_offset_ == queue_.front().size()) {
      queue_.pop_front();
      queue_offset_ = 0;
    }
  }
}

}  // namespace railyard::bootstrap
