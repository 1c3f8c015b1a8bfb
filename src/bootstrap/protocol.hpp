/// What ranks and the rendezvous say to each other: frames, their contents and their proofs. Pure functions over bytes,
/// no sockets.
///
///     rank                         rendezvous
///     hello  (version, nonce)  ->
///                              <-  challenge (version, nonce)     or refusal
///     proof  (of the job key)  ->
///                              <-  welcome (proof of the job key) or refusal
///     enter  (join)            ->                                 from here on every frame is sealed
///                              <-  result                         or failure
///     enter  (allgather, ...)  ->
///                              <-  result                         or failure
///     leave                    ->
///
/// A frame is a 32-bit length, a type and a payload; the length counts type and payload. A sealed frame is followed by
/// a tag made with a key of that connection and direction and the frame's number, so that nothing can be changed, put
/// in, left out or played again. Nothing is encrypted: the job key never travels, contributions do.
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

namespace railyard::bootstrap {

/// "RAILYARD" in the order the bytes travel. Magic and version of a hello keep their place in every version.
inline constexpr std::uint64_t kMagic = 0x44524159'4c494152ULL;
inline constexpr std::uint16_t kWireVersion = 1;

/// Most ranks of a job.
inline constexpr std::int32_t kMostRanks = 1 << 20;
/// Longest frame between two who do not know each other yet.
inline constexpr std::size_t kMostHandshake = 1024;
/// Longest text of a refusal or failure.
inline constexpr std::size_t kMostText = 4096;
inline constexpr std::size_t kMostRefusalText = 512;
/// Longest contribution of one rank to one allgather, and of all together.
inline constexpr std::size_t kMostContribution = 16U << 20U;
inline constexpr std::size_t kMostGathered = 256U << 20U;
/// Longest frames with room for their fixed fields.
inline constexpr std::size_t kMostFrameToServer = kMostContribution + 256;
inline constexpr std::size_t kMostFrameToClient = kMostGathered + std::size_t{4} * kMostRanks + 256;
static_assert(kMostRefusalText + 64 < kMostHandshake);
static_assert(kMostFrameToClient < UINT32_MAX);

enum class FrameType : std::uint8_t {
  hello = 1,
  challenge,
  proof,
  welcome,
  refusal,
  enter,
  result,
  failure,
  leave,
};

/// The collective calls. `join` is each rank's first: it completes when all ranks are there.
enum class Call : std::uint8_t { join = 1, allgather, barrier };
const char* to_string(Call call);

using Nonce = Digest;

struct Hello {
  std::uint16_t version = kWireVersion;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  Nonce nonce{};
};
struct Challenge {
  std::uint16_t version = kWireVersion;
  Nonce nonce{};
};
struct Enter {
  Call call = Call::join;
  std::uint64_t sequence = 0;             ///< the number of this call in its rank's life
  std::uint64_t timeout_ns = kNoTimeout;  ///< how long the rank is willing to wait
  std::vector<std::byte> contribution;    ///< allgather: the blob; join: how the rank calls itself in messages
  static constexpr std::uint64_t kNoTimeout = UINT64_MAX;
};
struct GatherResult {
  Call call = Call::join;
  std::uint64_t sequence = 0;
  std::vector<std::vector<std::byte>> contributions;  ///< of an allgather, by rank
};
/// A refusal (not sealed) or a failure (sealed).
struct Complaint {
  Status status = Status::io;
  std::int32_t peer = -1;
  std::string text;
};

std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Challenge& challenge);
std::vector<std::byte> encode(const Enter& enter);
std::vector<std::byte> encode(const Digest& proof);
std::vector<std::byte> encode_result(Call call, std::uint64_t sequence,
                                     std::span<const std::vector<std::byte>> contributions);
/// Cuts the text at `most_text` bytes.
std::vector<std::byte> encode(const Complaint& complaint, std::size_t most_text);

/// Each returns nothing for bytes that are not such a message, whole and in range. A hello or challenge of another
/// version comes back with its version alone filled in.
std::optional<Hello> parse_hello(std::span<const std::byte> payload);
std::optional<Challenge> parse_challenge(std::span<const std::byte> payload);
std::optional<Enter> parse_enter(std::span<const std::byte> payload);
std::optional<Digest> parse_proof(std::span<const std::byte> payload);
std::optional<GatherResult> parse_result(std::span<const std::byte> payload, std::int32_t size);
/// The text comes back printable.
std::optional<Complaint> parse_complaint(std::span<const std::byte> payload, std::size_t most_text);

/// What both ends know of a connection once nonces are exchanged. Every proof and key is bound to all of it.
struct Handshake {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  Nonce client_nonce{};
  Nonce server_nonce{};
};
enum class Side : std::uint8_t { client, server };
/// What `side` shows to prove that it knows the key.
Digest proof_of(std::string_view job_key, const Handshake& handshake, Side side);

/// Makes the tags of one direction of one connection: each frame gets the next.
class Seal {
 public:
  Seal(std::string_view job_key, const Handshake& handshake, Side sender);
  /// The tag of the next frame, whose bytes hash to `frame`.
  Digest next(const Digest& frame);

 private:
  Digest key_;
  std::uint64_t number_ = 0;
};

/// Bytes on their way out; shared where several ranks get the same.
using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

/// A frame as it travels, and its hash for the seals.
struct OutgoingFrame {
  SharedBytes bytes;
  Digest digest{};
};
OutgoingFrame make_frame(FrameType type, std::span<const std::byte> payload);

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

  void feed(std::span<const std::byte> bytes);
  State next(Frame& frame);

 private:
  std::size_t most_;
  std::optional<Seal> seal_;
  std::vector<std::byte> bytes_;
  std::size_t taken_ = 0;  ///< bytes at the front that were consumed already
};

/// Text of an unauthenticated peer made fit for a log: control characters become '?'.
std::string printable(std::string_view text);
/// "rank 3", "rank 3 and rank 7", "rank 1, rank 2 and rank 3"; long lists end in "and 12 more".
std::string list_ranks(std::span<const std::int32_t> ranks);
/// "60 s", "1.5 s", "20 ms".
std::string show_duration(std::uint64_t nanoseconds);

}  // namespace railyard::bootstrap
