/// How rails of this driver find each other: their addresses, and the CM messages they exchange to set links up.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.hpp"
#include "fabric/rail.hpp"
#include "fabric/secret.hpp"
#include "fabric/verbs/library.hpp"

namespace railyard::fabric::verbs {

/// Where a rail takes CM messages: a datagram queue pair. Every CM message says this of its sender.
struct CmAddress {
  std::uint64_t name = 0;  ///< random: no two rails, ever, have the same
  ibv_gid gid{};
  std::uint16_t lid = 0;
  bool infiniband = false;
  std::uint32_t queue_pair = 0;
  std::uint32_t queue_key = 0;
  std::uint16_t liveness_port = 0;  ///< the TCP port that is open while the rail is, at the GID; 0: none is there

  bool operator==(const CmAddress& other) const;
  void write(ByteWriter& writer) const;
  static CmAddress read(ByteReader& reader);
};

/// A rail's address: that, and the secret that admits to it (admission.hpp). No CM message carries the secret.
struct VerbsRailAddress : CmAddress {
  static constexpr std::size_t kMostHosts = 8;

  Secret secret{};
  std::uint16_t host_port = 0;  ///< the liveness port where the GID is no IP address; 0: there is none
  std::vector<ibv_gid> hosts;   ///< addresses of the host at which it may be reached

  bool operator==(const VerbsRailAddress& other) const;
  std::vector<std::byte> pack() const;
  /// `rail`: whose error it would be.
  static Result<VerbsRailAddress> parse(std::span<const std::byte> bytes, bool infiniband, const std::string& rail);
};

/// One end of a queue pair, as the other has to know it.
struct EndData {
  std::uint32_t queue_pair = 0;
  std::uint32_t first_packet = 0;
  std::uint8_t mtu = 0;    ///< as ibv_mtu
  std::uint8_t reads = 0;  ///< reads and atomics that it answers at once
  std::uint32_t ece_vendor = 0;
  std::uint32_t ece_options = 0;
  std::uint32_t ece_mask = 0;
};

struct CmMessage {
  enum class Kind : std::uint8_t {
    call = 1,  ///< I want a link with `tag`; here is my end
    answer,    ///< here is mine; with a tag: it serves my link back, too
    ready,     ///< it stands
    bind,      ///< my link with `tag` uses the queue pair that stands
    bound,     ///< so I have noted
    unbind,    ///< it does so no more
    over,      ///< the queue pair is no more, or I do not know it
    gone,      ///< so I have noted (unbind, over)
    refuse,    ///< I do not want it: `reason`
    ask,       ///< are you there?
    here,      ///< I am
  };
  enum class Reason : std::uint8_t { none, unwanted, no_room, unknown };

  /// Whose secret its MAC is made with.
  enum class SecretOf : std::uint8_t { receiver, sender };

  Kind kind = Kind::call;
  Reason reason = Reason::none;
  SecretOf secret_of = SecretOf::receiver;
  std::uint64_t number = 0;  ///< above that of every message before it from the same rail
  CmAddress from;
  std::uint64_t here = 0;   ///< the sender's handle of the queue pair
  std::uint64_t there = 0;  ///< the receiver's; 0: not known yet
  bool tagged = false;
  LinkTag tag;
  EndData end;

  static constexpr std::size_t kMacBytes = 32;
  static constexpr std::size_t kMostBytes = 192;  ///< with its MAC
  static_assert(kMostBytes <= 256, "a datagram must fit the smallest MTU");
  /// The message without its MAC, which is the business of Admission.
  std::vector<std::byte> pack() const;
  /// Nothing: this is no CM message of ours.
  static std::optional<CmMessage> parse(std::span<const std::byte> bytes);
};

}  // namespace railyard::fabric::verbs
