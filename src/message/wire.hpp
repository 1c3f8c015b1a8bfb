/// What the two ends of a channel tell each other, as records on its flow: in sequence, once each, whatever rail they
/// took. Fixed width, little-endian; region ids and offsets, never pointers (promise 9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "railyard/channel.hpp"
#include "transport/engine.hpp"

namespace railyard::message {

/// Kinds of a message record. In parentheses: what it is about (below).
enum class Kind : std::uint8_t {
  eager = 1,     ///< a message, or a chunk of one, in the record itself (OfMessage)
  region = 2,    ///< memory that grants will speak of, and its keys (OfRegion)
  grant = 3,     ///< a slot for one message (InRegion)
  done = 4,      ///< every byte of a granted message has landed (OfMessage)
  withdraw = 5,  ///< a region that no later grant will speak of (OfRegion)
  overflow = 6,  ///< a message does not fit its receive: the channel is over
  detach = 7,    ///< the last word: everything of the sender's has landed. The other end gives its own in return
};

// What a record is about, and what number and word say then.

struct OfMessage {
  std::int32_t tag = 0;
  std::uint64_t message = 0;  ///< its number: messages count up, in the order in which they were begun

  static OfMessage of(const transport::wire::Message& record) {
    return {static_cast<std::int32_t>(record.number), record.word};
  }
  transport::MessageRecord record(Kind kind, std::span<const std::byte> body) const {
    return {static_cast<std::uint8_t>(kind), static_cast<std::uint32_t>(tag), message, body};
  }
};

struct OfRegion {
  std::uint32_t region = 0;
  std::uint64_t bytes = 0;  ///< its length, when it is announced

  static OfRegion of(const transport::wire::Message& record) { return {record.number, record.word}; }
  transport::MessageRecord record(Kind kind, std::span<const std::byte> body) const {
    return {static_cast<std::uint8_t>(kind), region, bytes, body};
  }
};

struct InRegion {
  std::uint32_t region = 0;  ///< 0: none, for a message that needs no memory here
  std::uint64_t offset = 0;

  static InRegion of(const transport::wire::Message& record) { return {record.number, record.word}; }
  transport::MessageRecord record(Kind kind, std::span<const std::byte> body) const {
    return {static_cast<std::uint8_t>(kind), region, offset, body};
  }
};

/// Groups are the receives of a channel, named by the receiver; a group has 1 to 8 slots.
struct EagerHead {
  std::uint64_t bytes = 0;  ///< of the whole message
  std::uint32_t group = 0;
  std::uint8_t slot = 0;
  std::uint8_t flags = 0;
  std::uint16_t reserved = 0;

  static constexpr std::uint8_t kMatched = 1;  ///< `group` and `slot` hold; else the receiver finds them by the rule
  static constexpr std::uint8_t kFurther = 2;  ///< not the message's first chunk
};
static_assert(sizeof(EagerHead) == 16);

struct Grant {
  std::uint64_t room = 0;
  std::uint32_t group = 0;
  std::int32_t tag = 0;
  std::uint8_t slot = 0;
  std::uint8_t slots = 0;      ///< of the group
  std::uint8_t on_device = 0;  ///< 1: its memory is a GPU's
  std::uint8_t reserved[5] = {};
};
static_assert(sizeof(Grant) == 24);

struct Done {
  std::uint64_t bytes = 0;
  std::uint32_t group = 0;
  std::uint8_t slot = 0;
  std::uint8_t reserved[3] = {};
};
static_assert(sizeof(Done) == 16);

struct Overflow {
  std::uint64_t bytes = 0;  ///< of the message
  std::uint64_t room = 0;   ///< of the receive
};
static_assert(sizeof(Overflow) == 16);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// The record's body as a T; nothing if it has another size.
template <typename T>
std::optional<T> read(std::span<const std::byte> body) {
  if (body.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, body.data(), sizeof value);
  return value;
}

/// The most of a message that one eager record holds.
inline constexpr std::size_t kMostEagerChunk = transport::Engine::kMostMessage - sizeof(EagerHead);
/// Messages that a sender may have sent ahead of their receives, and their bytes: what a receiver must keep.
inline constexpr std::uint32_t kMostUnexpected = 64;
inline constexpr std::uint64_t kMostUnexpectedBytes = 512 * 1024;
/// Registrations that a user may have on a channel.
inline constexpr std::size_t kMostRegistrations = 1024;
/// Regions that one end may have announced at a time: those, and one for each slot of each receive.
inline constexpr std::size_t kMostRegions = kMostRegistrations + Channel::kMostRequests * Channel::kMostSlots;

}  // namespace railyard::message
