/// What ranks and the rendezvous of their job say to each other once both have proven the job key.
///
///     rank                         rendezvous
///     enter (join)             ->                 sent behind the rank's proof
///                              <-  result         or failure
///     enter (allgather, ...)   ->
///                              <-  result         or failure
///     leave                    ->
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "railyard/result.hpp"
#include "rendezvous/frames.hpp"

namespace railyard::bootstrap {

/// Most ranks of a job.
inline constexpr std::int32_t kMostRanks = 1 << 20;
/// Longest contribution of one rank to one allgather, and of all together.
inline constexpr std::size_t kMostContribution = 16U << 20U;
inline constexpr std::size_t kMostGathered = 256U << 20U;
/// Longest frames with room for their fixed fields.
inline constexpr std::size_t kMostFrameToServer = kMostContribution + 256;
inline constexpr std::size_t kMostFrameToClient = kMostGathered + std::size_t{4} * kMostRanks + 256;
static_assert(kMostFrameToClient < UINT32_MAX);

inline constexpr auto kEnter = rendezvous::own_type(0);
inline constexpr auto kResult = rendezvous::own_type(1);
inline constexpr auto kLeave = rendezvous::own_type(2);

/// The collective calls. `join` is each rank's first: it completes when all ranks are there.
enum class Call : std::uint8_t { join = 1, allgather, barrier };
const char* to_string(Call call);

/// What a rank claims to be.
struct Claim {
  std::int32_t rank = 0;
  std::int32_t size = 0;
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

std::vector<std::byte> encode(const Claim& claim);
std::vector<std::byte> encode(const Enter& enter);
std::vector<std::byte> encode_result(Call call, std::uint64_t sequence,
                                     std::span<const std::vector<std::byte>> contributions);

/// Each returns nothing for bytes that are not such a message, whole and in range.
std::optional<Claim> parse_claim(std::span<const std::byte> claim);
std::optional<Enter> parse_enter(std::span<const std::byte> payload);
std::optional<GatherResult> parse_result(std::span<const std::byte> payload, std::int32_t size);

/// "rank 3", "rank 3 and rank 7", "rank 1, rank 2 and rank 3"; long lists end in "and 12 more".
std::string list_ranks(std::span<const std::int32_t> ranks);
/// "60 s", "1.5 s", "20 ms".
std::string show_duration(std::uint64_t nanoseconds);

}  // namespace railyard::bootstrap
