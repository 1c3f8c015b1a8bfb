/// What connector and listener of channels say to each other once both have proven the listener's secret.
///
///     connector          listener
///     hello   ->                      sent behind the proof
///             <-         welcome      or failure: the host's refusal
///     ready   ->
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "message/channel_setup.hpp"
#include "message/handle.hpp"
#include "rendezvous/epoll_set.hpp"
#include "rendezvous/frames.hpp"

namespace railyard::message {

inline constexpr auto kHello = rendezvous::own_type(0);
inline constexpr auto kWelcome = rendezvous::own_type(1);
inline constexpr auto kReady = rendezvous::own_type(2);

/// A set-up message, or the host's refusal, with the frame's type.
inline constexpr std::size_t kMostSetupMessageFrame = kMostSetupMessage + 1;
static_assert(kMostSetupMessageFrame > rendezvous::kMostText + 64);
static_assert(rendezvous::kLastReads * rendezvous::kBufferBytes > kMostSetupMessage + rendezvous::kBufferBytes,
              "a whole set-up message is read before its sender is called late");

/// The claim of a connector: which listener it means.
inline std::vector<std::byte> claim_of_listener(std::uint64_t listener) {
  ByteWriter writer;
  writer.u64(listener);
  return writer.take();
}
inline std::optional<std::uint64_t> parse_listener(std::span<const std::byte> claim) {
  ByteReader reader(claim);
  const std::uint64_t listener = reader.u64();
  return reader.done() ? std::optional(listener) : std::nullopt;
}

inline std::string key_of_listener(const Secret& secret) {
  return {reinterpret_cast<const char*>(secret.data()), secret.size()};
}

}  // namespace railyard::message
