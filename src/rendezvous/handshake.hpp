/// The two ends of a connection, without their sockets: bytes in, bytes out. Each proves that it knows the key; from
/// then on the frames of a protocol pass, sealed. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/frames.hpp"

namespace railyard::rendezvous {

/// How long a connection on which everything was said stays open for the other end to read it and to close.
inline constexpr std::int64_t kLingerNs = 2'000'000'000;

/// What both ends have: frames cut from what arrives, frames on their way out.
class Conversation {
 public:
  void feed(Bytes bytes) { reader_.feed(bytes); }
  /// What goes out next; empty: nothing waits.
  Bytes outgoing() const;
  void sent(std::size_t bytes);
  /// Whether more waits behind `outgoing`.
  bool more_outgoing() const { return queue_.size() > 1; }
  /// Frames that the other end has not taken yet.
  std::size_t unsent() const { return queue_.size() / (seal_ ? 2 : 1); }

  /// The other end has proven that it knows the key.
  bool proven() const { return proven_; }
  void send(const OutgoingFrame& frame);
  void send(FrameType type, Bytes payload) { send(make_frame(type, payload)); }

 protected:
  Conversation(Handshake handshake, std::size_t most_frame)
      : handshake_(std::move(handshake)), reader_(kMostHandshake), most_frame_(most_frame) {}
  /// What this end sends from now on carries a tag.
  void seal_outgoing(Side mine) { seal_.emplace(key_, handshake_, mine); }
  /// The other end is proven: what it sends from now on must carry a tag, and may be long.
  void expect_seal(Side other);

  Handshake handshake_;
  std::string key_;
  FrameReader reader_;

 private:
  const std::size_t most_frame_;
  std::optional<Seal> seal_;
  bool proven_ = false;
  std::deque<SharedBytes> queue_;
  std::size_t queue_offset_ = 0;
};

/// Somebody connected.
class AcceptingEnd : public Conversation {
 public:
  enum class News : std::uint8_t {
    nothing,  ///< more bytes are needed
    hello,    ///< its claim is there; `challenge` or `refuse` is next
    proven,   ///< it knows the key; `let_in` or `refuse` is next
    frame,    ///< one of the protocol's
    fault,    ///< nothing more can come of it; `refuse` is next
  };
  enum class Fault : std::uint8_t { none, malformed, version, wrong_key, forged };

  /// `most_frame`: the longest one of the protocol.
  AcceptingEnd(Protocol protocol, std::size_t most_frame) : Conversation({protocol, {}, {}, {}}, most_frame) {}

  News next(Frame& frame);
  Bytes claim() const { return handshake_.claim; }
  void challenge(std::string key, const Nonce& nonce);
  void let_in();
  /// Says why and ends the conversation. Once it is sealed, the other end can believe it.
  void refuse(const Complaint& complaint);

  Fault fault() const { return fault_; }
  /// What arrived in place of what should have; and the same as it is told to the other end.
  const std::string& what() const { return what_; }
  const Complaint& complaint() const { return complaint_; }

 private:
  enum class Phase : std::uint8_t { hello, claimed, proof, knows_key, open, over };

  News handle_hello(const Frame& frame);
  News handle_proof(const Frame& frame);
  News fail(Fault fault, Status status, std::string text);

  Phase phase_ = Phase::hello;
  Fault fault_ = Fault::none;
  std::string what_;
  Complaint complaint_;
};

/// Why nothing more can come of an attempt to connect.
struct Failure {
  enum class Kind : std::uint8_t {
    unreachable,  ///< none of the addresses will do
    late,         ///< the time is up
    nobody,       ///< the socket reached itself
    foreign,      ///< what answers is not Railyard's
    version,      ///< another version of it
    refused,      ///< said by somebody who has proven nothing: believed, because cutting the connection does the same
    wrong_key,    ///< it does not know the key
    forged,       ///< a frame was changed on its way
    told,         ///< the acceptor's own word, proven
    lost,         ///< the connection ended
  };
  Kind kind = Kind::foreign;
  Complaint complaint;
};

/// This process connected.
class ConnectingEnd : public Conversation {
 public:
  enum class News : std::uint8_t { nothing, frame, failure };

  struct Options {
    Protocol protocol = Protocol::job;
    std::vector<std::byte> claim;
    std::string key;
    std::size_t most_frame = 0;          ///< the longest one of the protocol
    std::optional<OutgoingFrame> first;  ///< sent right behind the proof
  };
  ConnectingEnd(Options options, const Nonce& nonce);

  News next(Frame& frame);
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  enum class Phase : std::uint8_t { challenge, proof, open };

  News fail(Failure::Kind kind, Status status, std::string text, std::int32_t peer = -1);
  News handle(Frame& frame);
  News handle_challenge(const Frame& frame);
  News handle_proof(const Frame& frame);

  Phase phase_ = Phase::challenge;
  std::optional<OutgoingFrame> first_;
  std::optional<Failure> failure_;
};

}  // namespace railyard::rendezvous
