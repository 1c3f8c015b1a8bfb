/// Which CM messages count. Each carries a MAC under the secret of the rail that it goes to, if its sender knows that,
/// else under the sender's own: then the receiver knows it, because it has called the sender. Each carries a number
/// that grows with every message of its sender, and one that is not above all before it is dropped as if it had been
/// lost.
///
/// So a message counts only if a rail of the job has written it for this rail, once, and not after a later one. What
/// does not count costs its MAC and nothing else: no queue pair, no memory, no answer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "fabric/secret.hpp"
#include "fabric/verbs/address.hpp"

namespace railyard::fabric::verbs {

class Admission {
 public:
  void open(const VerbsRailAddress& own, std::span<const std::byte> job_key);
  /// A rail that we call: from here on MACs to and from it may be made with its secret.
  void know(const VerbsRailAddress& peer);

  /// What MACs for our own rail are made with.
  const Secret& own_key() const { return own_key_; }
  /// The same for a peer's rail.
  Secret key_of(const VerbsRailAddress& peer) const { return admission_key(peer.secret, job_key_); }

  /// The message with its number and its MAC, for the rail of this name alone.
  std::vector<std::byte> seal(CmMessage message, std::uint64_t to);
  /// Nothing: it does not count.
  std::optional<CmMessage> admit(std::span<const std::byte> bytes);

  /// Messages that nobody with a secret has written, or that are none at all.
  std::uint64_t unproven() const { return unproven_; }
  /// Messages that came again, or after a later one.
  std::uint64_t late() const { return late_; }

 private:
  /// A rail that we have called, or that has proven a secret. Kept as long as our rail: forgetting the newest number
  /// would let old messages count again.
  struct Known {
    std::optional<Secret> key;  ///< of its secret, where we have called it
    std::uint64_t newest = 0;   ///< the number of its last message
  };

  std::uint64_t own_name_ = 0;
  Secret own_key_{};
  std::vector<std::byte> job_key_;
  std::unordered_map<std::uint64_t, Known> known_;  ///< by name
  std::uint64_t sent_ = 0;
  std::uint64_t unproven_ = 0;
  std::uint64_t late_ = 0;
};

}  // namespace railyard::fabric::verbs
