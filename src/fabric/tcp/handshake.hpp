/// How a connection proves that it belongs to the job, before it costs anything. Four messages of fixed size:
///
///   connector HELLO      its nonce, its rail, the link's tag, and a MAC over these: without the secret it is
///                        refused at the first look, whatever else it sends
///   listener  CHALLENGE  a nonce of its own, so that a recorded HELLO is of no use
///   connector PROOF      a MAC over both nonces
///   listener  VERDICT    accepted or why not, with a MAC: the connector, too, knows whom it talks to
///
/// Nothing here is encrypted, and frames that follow carry no MAC: docs/tcp.md says where encryption belongs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/sha256.hpp"
#include "fabric/rail.hpp"
#include "fabric/tcp/address.hpp"

namespace railyard::fabric::tcp {

/// The name of a link, whatever its width.
using LinkId = decltype(LinkTag::id);

using Nonce = std::array<std::byte, 16>;

/// Bytes of a tag on the wire.
inline constexpr std::size_t kTagBytes = 2 * sizeof(LinkId) + sizeof(std::uint32_t) + sizeof(std::uint8_t);
void pack_tag(const LinkTag& tag, std::span<std::byte, kTagBytes> bytes);
LinkTag parse_tag(std::span<const std::byte, kTagBytes> bytes);

inline constexpr std::size_t kPrefixBytes = 8;
inline constexpr std::size_t kMacBytes = sizeof(Digest);
inline constexpr std::size_t kHelloBytes = kPrefixBytes + sizeof(Nonce) + sizeof(RailName) + kTagBytes + kMacBytes;
inline constexpr std::size_t kChallengeBytes = kPrefixBytes + sizeof(Nonce);
inline constexpr std::size_t kProofBytes = kPrefixBytes + kMacBytes;
inline constexpr std::size_t kVerdictBytes = kPrefixBytes + kMacBytes;
inline constexpr std::size_t kMostHandshakeBytes = kHelloBytes;
static_assert(kHelloBytes <= 160, "an unproven connection may cost next to nothing");

struct Hello {
  Nonce nonce{};
  RailName from{};
  LinkTag tag;
  bool insists = false;  ///< wants a connection of its own even if a facing link has one

  std::array<std::byte, kHelloBytes> pack(std::span<const std::byte> secret) const;
  /// Nothing: it is malformed, or whoever wrote it does not know the secret.
  static std::optional<Hello> parse(std::span<const std::byte, kHelloBytes> bytes, std::span<const std::byte> secret);
};

enum class Verdict : std::uint8_t {
  accepted,
  fenced,    ///< this epoch of the link is shut out, or is not the newest
  crossed,   ///< a link of ours to you is on its way or stands: bind to that one
  strange,   ///< the secret is another
  misrouted  ///< it arrived by another NIC than the rail's
};

/// What both sides have heard: what the MACs are made over.
struct Transcript {
  Hello hello;
  Nonce challenge{};

  std::array<std::byte, kProofBytes> proof(std::span<const std::byte> secret) const;
  bool proves(std::span<const std::byte, kProofBytes> bytes, std::span<const std::byte> secret) const;
  std::array<std::byte, kVerdictBytes> verdict(Verdict verdict, std::span<const std::byte> secret) const;
};

std::array<std::byte, kChallengeBytes> pack_challenge(const Nonce& nonce);
std::optional<Nonce> parse_challenge(std::span<const std::byte, kChallengeBytes> bytes);

/// The word for somebody without the secret: it has no MAC.
std::array<std::byte, kVerdictBytes> pack_rejection();
/// Instead of a challenge a connector may hear a verdict: the first bytes say which it is.
bool is_verdict(std::span<const std::byte, kPrefixBytes> prefix);
struct ReceivedVerdict {
  Verdict verdict = Verdict::strange;
  bool authentic = false;
};
std::optional<ReceivedVerdict> parse_verdict(std::span<const std::byte, kVerdictBytes> bytes,
                                             const Transcript& transcript, std::span<const std::byte> secret);

}  // namespace railyard::fabric::tcp
