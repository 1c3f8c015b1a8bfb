/// Flow: the one sequence between this process and a peer, in each direction, over all links to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "railyard/result.hpp"
#include "transport/held_frames.hpp"
#include "transport/link.hpp"
#include "transport/operation.hpp"
#include "transport/receive_window.hpp"

namespace railyard::transport {

/// Units a sender may send before the first grant.
inline constexpr std::uint32_t kFirstGrant = 16;
/// Fetching operations a sender may have outstanding; the target keeps room for so many answers, so that applying a
/// request never waits for anything (no deadlock between two ranks that fetch from each other).
inline constexpr std::uint32_t kMostFetches = 64;

/// An answer that waits for a frame to carry it.
struct Reply {
  std::uint32_t request = 0;
  std::uint8_t status = 0;
  std::uint64_t value = 0;
};

/// A ping to be answered.
struct Pong {
  std::uint32_t round = 0;
  std::uint64_t place = 0;
};

/// A round of pings over all links of a flow, to find out which of them answer.
struct Probe {
  bool on = false;
  bool answering = false;         ///< begun because the peer began one
  std::uint32_t first_round = 0;  ///< of its pings
  std::uint32_t repeats = 0;
  std::int64_t since = 0;
  std::int64_t first_answer = 0;       ///< 0: none yet
  std::int64_t ended = INT64_MIN / 2;  ///< long ago
};

struct Flow {
  // Who.
  int peer = -1;
  std::uint16_t remote_id = 0;    ///< what the peer calls this flow
  std::uint32_t session_out = 0;  ///< proves us to the peer
  std::uint32_t session_in = 0;   ///< proves the peer to us
  std::vector<Link> links;
  std::size_t max_write = 0;      ///< longest piece that every link can carry
  std::uint32_t first_link = 0;   ///< where frames of an idle flow go: spread by rank, so that not all use rail 0
  std::uint32_t first_piece = 0;  ///< where the next piece of an idle flow goes: each link in turn

  // Transmit: written by the baton's holder.
  Fifo<Operation> queue;
  std::uint32_t queued = 0;
  std::uint32_t frames = 0;  ///< frames that wait or are unacknowledged
  Fifo<Unit> unacknowledged;
  std::uint32_t next_sequence = 0;
  std::uint32_t acknowledged = 0;
  std::uint32_t limit = kFirstGrant;
  std::uint32_t out_of_sequence = 0;  ///< relaxed writes, reads and fetches under way
  std::uint32_t fetches = 0;
  std::uint32_t fence_sequence = 0;
  bool fence_requested = false;  ///< the next operation is fenced
  bool fence_active = false;     ///< writes and reads wait until `fence_sequence` is acknowledged

  // Completion: written by the baton's holder, read by anyone. Release on store: whoever sees an operation complete
  // sees what it brought (a get's bytes, a fetched value).
  std::atomic<std::uint64_t> completed{0};    ///< operations of the sequence
  std::atomic<std::uint64_t> outstanding{0};  ///< operations of any kind
  std::uint64_t submitted = 0;
  std::atomic<bool> failed{false};
  Error error;  ///< set before `failed`

  // Receive.
  ReceiveWindow arrivals;
  HeldFrames held;
  std::uint32_t granted = kFirstGrant;
  std::uint32_t unreported = 0;  ///< units taken effect since the last acknowledgement
  bool heard = false;
  std::vector<Reply> replies;

  // Health. Times are the engine's health clock.
  std::vector<Unit*> replay;  ///< to be posted again, before anything new
  std::vector<Unit*> parked;  ///< out of sequence, of a dead link that is not fenced yet
  std::vector<Pong> pongs;
  std::int64_t pongs_since = 0;  ///< since when there have been some
  Probe probe;
  std::uint32_t rounds = 0;                  ///< pings numbered so far
  std::uint32_t head_seen = 0;               ///< the oldest unacknowledged unit at the last look
  std::int64_t head_since = 0;               ///< since when it is that
  std::int64_t heard_at = 0;                 ///< the last message from the peer
  std::int64_t renewed_for = 0;              ///< the silence after that moment for which the links were made anew
  std::int64_t concerned_since = 0;          ///< one of the peer's links to us ended: is it still there? 0: no doubt
  std::atomic<bool> lost_operations{false};  ///< the flow failed with operations under way
  std::atomic<bool> loss_told{false};        ///< by a `quiet` for all ranks
  /// The peer's memory is used past the engine: that nothing is under way says nothing.
  std::atomic<bool> direct{false};
  bool acquainted = false;  ///< the peer has answered: it knows this flow, and says goodbye when it leaves

  // Membership in the engine's lists.
  bool watched = false;
  bool in_noticing = false;
  bool in_active = false;
  bool in_reporting = false;
  bool in_ready = false;

  std::uint16_t index_of(const Link& link) const { return static_cast<std::uint16_t>(&link - links.data()); }
  bool may_send(std::uint32_t window) const {
    return next_sequence - acknowledged<window&& static_cast<std::int32_t>(limit - next_sequence)> 0;
  }
};

}  // namespace railyard::transport
