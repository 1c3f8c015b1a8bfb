#include "fabric/verbs/admission.hpp"

#include "base/sha256.hpp"

namespace railyard::fabric::verbs {

namespace {

static_assert(CmMessage::kMacBytes == sizeof(Digest));

/// Over the whole message and the name of the receiver: it is of no use anywhere else, nor back at its sender.
Digest mac_of(std::span<const std::byte> message, std::uint64_t to, const Secret& key) {
  ByteWriter writer;
  writer.raw(message);
  writer.u64(to);
  return hmac_sha256(key, writer.bytes());
}

}  // namespace

void Admission::open(const VerbsRailAddress& own, std::span<const std::byte> job_key) {
  own_name_ = own.name;
  job_key_.assign(job_key.begin(), job_key.end());
  own_key_ = admission_key(own.secret, job_key_);
}

void Admission::know(const VerbsRailAddress& peer) { known_[peer.name].key = key_of(peer); }

std::vector<std::byte> Admission::seal(CmMessage message, std::uint64_t to) {
  const auto found = known_.find(to);
  const bool receivers = found != known_.end() && found->second.key;
  message.number = ++sent_;
  message.secret_of = receivers ? CmMessage::SecretOf::receiver : CmMessage::SecretOf::sender;
  auto bytes = message.pack();
  const Digest mac = mac_of(bytes, to, receivers ? *found->second.key : own_key_);
  bytes.insert(bytes.end(), mac.begin(), mac.end());
  return bytes;
}

std::optional<CmMessage> Admission::admit(std::span<const std::byte> bytes) {
  const auto drop = [](std::uint64_t& count) {
    ++count;
    return std::nullopt;
  };
  if (bytes.size() <= CmMessage::kMacBytes) return drop(unproven_);
  const auto body = bytes.first(bytes.size() - CmMessage::kMacBytes);
  const auto message = CmMessage::parse(body);
  if (!message) return drop(unproven_);
  const auto found = known_.find(message->from.name);
  const bool senders = message->secret_of == CmMessage::SecretOf::sender;
  if (senders && (found == known_.end() || !found->second.key)) return drop(unproven_);
  const Secret& key = senders ? *found->second.key : own_key_;
  if (!equal_in_constant_time(bytes.last(CmMessage::kMacBytes), mac_of(body, own_name_, key))) return drop(unproven_);
  // Not before the proof: who has none is to leave nothing behind.
  std::uint64_t& newest = known_[message->from.name].newest;
  if (message->number <= newest) return drop(late_);
  newest = message->number;
  return message;
}

}  // namespace railyard::fabric::verbs
