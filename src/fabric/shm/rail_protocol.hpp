/// What the rails say to each other in the records of their rings.
///
/// Every record begins with the number of the link it belongs to (answers: with the handle of what they answer). Two
/// rails have one ring each way, whatever the number of links between them.
#pragma once

#include <cstdint>

namespace railyard::fabric::shm {

enum RailKind : std::uint8_t {
  kHello = 1,  ///< number, tag.id | tag.epoch, where its guard lies, what the guard holds, more of tag.id
  kWelcome,    ///< number, 1 if the target reads the sender's memory by itself
  kShut,       ///< number, a Trouble: the target takes nothing of this link any more
  kBye,        ///< number, 1 if it had been welcomed: the sender has ended the link
  kMessage,    ///< number; payload
  kWrite,      ///< number, key | address, handle or 0, immediate; payload: a chunk that stands for itself
  kPull,     ///< number, key | address, handle, immediate and length, where the bytes are: the target gets them itself
  kRead,     ///< number, key | address, handle, bytes: to be answered
  kCheck,    ///< the same: the sender has read the bytes itself; are they what the key stands for?
  kAnswer,   ///< handle, offset; payload
  kDone,     ///< handle, a Trouble or 0
  kShare,    ///< a number for an allocation of device memory, its address at the sender; payload: its ShareHandle
  kUnshare,  ///< that number: it means nothing any more
  kAnswerShare,  ///< handle, where in device memory the bytes are: the reader gets them itself, then has them checked
};

/// Flags of a write.
inline constexpr std::uint8_t kLast = 1;        ///< its last chunk
inline constexpr std::uint8_t kImmediate = 2;   ///< to be told at the target
inline constexpr std::uint8_t kFromDevice = 4;  ///< of a pull: the bytes are in device memory, at a DeviceLocation

/// A location in device memory that was shared: the number of the allocation and an offset.
struct DeviceLocation {
  static constexpr unsigned kOffsetBits = 40;
  static constexpr std::uint32_t kMostShares = 1U << 24U;
  static constexpr std::uint64_t pack(std::uint32_t share, std::uint64_t offset) {
    return std::uint64_t{share} << kOffsetBits | offset;
  }
  static constexpr std::uint32_t share(std::uint64_t word) { return static_cast<std::uint32_t>(word >> kOffsetBits); }
  static constexpr std::uint64_t offset(std::uint64_t word) { return word & ((std::uint64_t{1} << kOffsetBits) - 1); }
};

/// What goes wrong: the `error` of events, and what records say of it.
enum Trouble : int {
  kNoTrouble = 0,
  kNobodyThere,   ///< no endpoint of that identity
  kPeerGone,      ///< it was there
  kRingBroken,    ///< the peer wrote what cannot be
  kEpochRefused,  ///< the target has fenced that epoch of the link, or knows a newer one
  kFenced,        ///< the target has shut the link out
  kBadKey,        ///< no such registration (any more), or not all of the bytes lie in it
  kUnreadable,    ///< the target could not read the bytes out of the sender's memory
  kTooMany,       ///< more requests than a link may have under way
  kTooLong,       ///< a message longer than its receive
  kEnded,         ///< the link was ended first
  kStopped,       ///< the rail is stopped
  kNotMapped,     ///< the target cannot map the sender's device memory
  kDeviceError,   ///< the GPU failed
  kTroubles,
};

}  // namespace railyard::fabric::shm
