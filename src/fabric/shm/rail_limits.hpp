/// Sizes of the rail, and what they rest on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shm/layout.hpp"

namespace railyard::fabric::shm {

inline constexpr std::size_t kMostMessage = 4096;
static_assert(kMostMessage <= railyard::shm::most_payload(railyard::shm::kRingClasses.back().bytes),
              "a message is one record, in every ring");
inline constexpr std::size_t kMostWrite = std::size_t{1} << 30;
static_assert(kMostWrite <= UINT32_MAX, "a pull has 32 bits for it");
/// Operations of one link that wait for something, receives of the rail, and events that nobody has polled yet.
inline constexpr std::size_t kDepth = 1024;
/// From here on bytes are read out of the sender's memory rather than sent through the ring, where that is permitted.
inline constexpr std::size_t kLeastSingleCopy = 64 * 1024;
/// A slice of that: what one poll does for one peer.
inline constexpr std::size_t kSlice = 512 * 1024;
/// Longest chunk of a write or an answer.
inline constexpr std::size_t kMostChunk = 8 * 1024;
/// Answers that a peer may leave unread before this rail takes nothing of it any more: more than its links can have
/// asked for.
inline constexpr std::size_t kMostOwed = 16 * kDepth;
/// Peers that are moved on in one poll.
inline constexpr std::size_t kPeersPerPoll = 8;
inline constexpr unsigned kPollsPerLook = 1024;

}  // namespace railyard::fabric::shm
