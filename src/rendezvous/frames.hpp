/// What the two ends of a rendezvous say until each knows that the other has the key, and how everything after that is
/// framed and sealed. Pure functions over bytes, no sockets.
///
///     connector                                   acceptor
///     hello  (version, protocol, claim, nonce) ->
///                                              <-  challenge (version, nonce)  or refusal
///     proof  (of the key)                      ->
///     the protocol's frames, sealed            ->
///                                              <-  proof (of the key)          or refusal
///                                              <-  the protocol's frames, sealed, or failure, sealed: the last word
///
/// The claim says what the connector wants and thereby which key it must have: rank and size of a job, or a listener of
/// channels. A frame is a 32-bit length, a type and a payload; the length counts type and payload. A sealed frame is
/// followed by a tag made with a key of that connection and direction and the frame's number, so that nothing can be
/// changed, put in, left out or played again. Nothing is encrypted: the key never travels, payloads do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.hpp"
#include "railyard/result.hpp"

namespace railyard::rendezvous {

/// "RAILYARD" in the order the bytes travel. Magic and version of a hello keep their place in every version.
inline constexpr std::uint64_t kMagic = 0x44524159'4c494152ULL;
inline constexpr std::uint16_t kWireVersion = 2;

/// Longest frame between two who do not know each other yet, and longest claim.
inline constexpr std::size_t kMostHandshake = 1024;
inline constexpr std::size_t kMostClaim = 64;
/// Longest text of a failure and of a refusal.
inline constexpr std::size_t kMostText = 4096;
inline constexpr std::size_t kMostRefusalText = 512;
static_assert(kMostRefusalText + 64 < kMostHandshake);

/// What is spoken after the handshake.
enum class Protocol : std::uint8_t { job = 1, channel = 2 };

enum class FrameType : std::uint8_t {
  hello = 1,
  challenge,
  proof,
  refusal,
  failure,
  // From 16 on: the protocol's own.
};
/// The `number`-th type of a protocol.
constexpr FrameType own_type(std::uint8_t number) { return static_cast<FrameType>(16 + number); }

using Nonce = Digest;
using Bytes = std::span<const std::byte>;

struct Hello {
  std::uint16_t version = kWireVersion;
  Protocol protocol = Protocol::job;
  std::vector<std::byte> claim;
  Nonce nonce{};
};
struct Challenge {
  std::uint16_t version = kWireVersion;
  Nonce nonce{};
};
/// Why somebody is not let in (a refusal, not sealed), or why a connection ends (a failure, sealed).
struct Complaint {
  Status status = Status::io;
  std::int32_t peer = -1;
  std::string text;
};

std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Challenge& challenge);
std::vector<std::byte> encode(const Digest& proof);
/// Cuts the text at `most_text` bytes.
std::vector<std::byte> encode(const Complaint& complaint, std::size_t most_text);

/// Each returns nothing for bytes that are not such a message, whole and in range. A hello or challenge of another
/// version comes back with its version alone filled in.
std::optional<Hello> parse_hello(Bytes payload);
std::optional<Challenge> parse_challenge(Bytes payload);
std::optional<Digest> parse_proof(Bytes payload);
/// The text comes back printable.
std::optional<Complaint> parse_complaint(Bytes payload, std::size_t most_text);

/// What both ends know of a connection once nonces are exchanged. Every proof and key is bound to all of it.
struct Handshake {
  Protocol protocol = Protocol::job;
  std::vector<std::byte> claim;
  Nonce connector_nonce{};
  Nonce acceptor_nonce{};
};
enum class Side : std::uint8_t { connector, acceptor };
/// What `side` shows to prove that it knows the key.
Digest proof_of(std::string_view key, const Handshake& handshake, Side side);

/// Makes the tags of one direction of one connection: each frame gets the next.
class Seal {
 public:
  Seal(std::string_view key, const Handshake& handshake, Side sender);
  /// The tag of the next frame, whose bytes hash to `frame`.
  Digest next(const Digest& frame);

 private:
  Digest key_;
  std::uint64_t number_ = 0;
};

/// Bytes on their way out; shared where several connections get the same.
using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

/// A frame as it travels, and its hash for the seals.
struct OutgoingFrame {
  SharedBytes bytes;
  Digest digest{};
};
OutgoingFrame make_frame(FrameType type, Bytes payload);

struct Frame {
  FrameType type = FrameType::hello;
  std::vector<std::byte> payload;
};

/// Cuts a stream of bytes into frames. Holds at most one frame and what came behind it in one `feed`.
class FrameReader {
 public:
  enum class State : std::uint8_t {
    more,      ///< no whole frame yet
    frame,     ///< one was taken out
    oversize,  ///< a length nobody may send; the stream is lost
    forged,    ///< a tag that does not fit; the stream is lost
  };

  /// `most`: the longest frame (type and payload) accepted.
  explicit FrameReader(std::size_t most) : most_(most) {}
  void set_most(std::size_t most) { most_ = most; }
  /// From the next frame on, tags are expected.
  void expect_seal(Seal seal) { seal_ = seal; }

  void feed(Bytes bytes);
  State next(Frame& frame);

 private:
  std::size_t most_;
  std::optional<Seal> seal_;
  std::vector<std::byte> bytes_;
  std::size_t taken_ = 0;  ///< bytes at the front that were consumed already
};

/// Text of an unauthenticated peer made fit for a log: control characters become '?'.
std::string printable(std::string_view text);

}  // namespace railyard::rendezvous
