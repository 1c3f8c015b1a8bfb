/// Flow: one sequence between this process and a peer, in each direction, over all links of its route. A window has one
/// for each peer, a channel has one of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "railyard/result.hpp"
#include "transport/failures.hpp"
#include "transport/flow_receiver.hpp"
#include "transport/flow_sender.hpp"
#include "transport/route.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

struct Flow;

/// Who takes the messages of a flow. Called while arrivals are handled: changes state only, posts nothing (promise 7).
class Inbox {
 public:
  virtual ~Inbox() = default;
  /// A message, in its turn. False: it is not one, and is counted as malformed. Its acknowledgement is patient, unless
  /// the inbox says that the peer waits for it (`FlowReceiver::await_report`).
  virtual bool on_message(const wire::Message& message, std::span<const std::byte> body) = 0;
  /// `Flow::completed` has risen.
  virtual void on_completed() = 0;
  /// The operation of this number failed alone: `Flow::failure_of` says why. Told once, before `completed` reaches it.
  virtual void on_refused(std::uint64_t /*number*/) {}
  /// The flow has failed: `Flow::error` says why. Told once.
  virtual void on_failed() = 0;
};

/// What a flow has on one link of its route.
struct Share {
  std::uint64_t bytes = 0;       ///< of chunks in flight
  std::uint32_t frames = 0;      ///< in flight
  bool unfenced = false;         ///< segments of the link's last epoch wait for the target's word on what has arrived
  std::uint32_t dead_epoch = 0;  ///< the epoch to be fenced
  std::int64_t fence_asked_at = 0;  ///< 0: not yet
};

/// How far a frame has taken effect: up to the record at hand.
struct FrameProgress {
  memory::Buffer* buffer = nullptr;
  const std::byte* at = nullptr;  ///< where the record begins
  std::uint32_t index = 0;        ///< of the record
  bool skip = false;              ///< it belongs to an operation that was refused, if it is joined

  /// A frame of which nothing has taken effect.
  static FrameProgress begin(memory::Buffer& buffer, bool skip) {
    return {&buffer, buffer.data + wire::kRecordsAt, 0, skip};
  }
  const wire::FrameHeader& header() const { return *reinterpret_cast<const wire::FrameHeader*>(buffer->data); }
  /// Reads from the record at hand on.
  wire::RecordReader reader() const { return {header(), at, index}; }
};

struct Flow {
  // Who.
  int peer = -1;
  std::uint16_t id = 0;           ///< what the peer puts into its frames and immediates
  std::uint16_t remote_id = 0;    ///< what the peer calls this flow
  std::uint64_t session_out = 0;  ///< proves us to the peer
  std::uint64_t session_in = 0;   ///< proves the peer to us
  Route* route = nullptr;
  std::vector<Share> shares;       ///< by the route's links
  Inbox* inbox = nullptr;          ///< null: no messages on this flow
  std::uint32_t first_link = 0;    ///< where small traffic goes while that link has little to do: both ends agree
  std::uint32_t small_chunks = 0;  ///< the same for chunks of small operations: the peer's go another way
  std::uint32_t first_chunk = 0;   ///< where the next large chunk of an idle flow goes: each link in turn
  static constexpr std::uint16_t kNoLink = UINT16_MAX;
  std::uint16_t chunk_on = kNoLink;   ///< the link of the last segment that was sent, where that was a chunk
  std::uint16_t landed_on = kNoLink;  ///< the same of the last that landed and was not acknowledged yet

  // Its two halves: written by the progress lock's holder.
  FlowSender sender;
  FlowReceiver receiver;

  /// The frame whose turn it is waits for a word in the memory of a GPU (device_words.cc); what follows it, too.
  std::optional<FrameProgress> applying;

  // Completion: written by the progress lock's holder, read by anyone. Release on store: whoever sees an operation
  // complete sees what it brought (a get's bytes, a fetched value).
  std::atomic<std::uint64_t> completed{0};    ///< operations of the sequence
  std::atomic<std::uint64_t> outstanding{0};  ///< operations of any kind
  std::atomic<std::uint64_t> submitted{0};    ///< of the sequence, ever: a greater number was never given out
  std::atomic<bool> failed{false};
  Error error;  ///< set before `failed`
  /// Operations of the sequence that failed alone. Asked by any thread, of operations up to `completed`.
  mutable FailureLog failures;
  /// How a complete operation of the sequence has failed; nothing: it has not.
  std::optional<Error> failure_of(std::uint64_t number) const {
    const auto found = failures.find(number);
    return found ? std::optional<Error>(to_error(*found)) : std::nullopt;
  }

  bool heard = false;  ///< the peer has sent something: it has a share of the receive buffers

  // Refusals (refusals.cc).
  std::int64_t refusals_due = 0;  ///< when the peer is told of ours, or told again
  bool confirm = false;           ///< the peer's refusals up to `confirmed` are known: to be said
  std::uint64_t confirmed = 0;

  // Health. Times are the engine's health clock.
  std::uint32_t head_seen = 0;               ///< the oldest unacknowledged segment at the last look
  std::int64_t head_since = 0;               ///< since when it is that
  std::atomic<bool> lost_operations{false};  ///< the flow failed with operations under way
  std::atomic<bool> loss_told{false};        ///< by a `quiet` for all ranks
  /// The peer's memory is used past the engine: that nothing is under way says nothing.
  std::atomic<bool> direct{false};
  std::uint32_t posted = 0;  ///< segments that a rail still holds
  std::uint64_t bytes_in_flight = 0;
  std::uint32_t lone_messages = 0;   ///< small ones that left or arrived since the last chunk did
  bool closing = false;              ///< its user is gone; waits for what the rails still hold
  bool parting = false;              ///< its user's last word is said: the peer may have dropped its end
  bool leaving = false;              ///< the peer has said goodbye
  std::uint32_t leave_sequence = 0;  ///< all that it sent before it did

  /// How long its operations take: histograms of its own record and of its inbox's; null: nothing is published.
  std::atomic<std::uint64_t>* latency = nullptr;
  std::atomic<std::uint64_t>* inbox_latency = nullptr;

  // Membership in lists of the engine's parts.
  bool in_active = false;
  bool in_reporting = false;
  std::int64_t reporting_since = 0;  ///< the pass in which it began to owe the peer an acknowledgement
  bool in_ready = false;
  bool in_refusing = false;

  /// The header of a frame that leaves now: it tells the peer where both directions stand. `grant`: how many segments
  /// it may be ahead.
  void write_header(std::byte* frame, wire::FrameKind kind, std::uint16_t records, std::uint32_t sequence,
                    std::uint32_t bytes, std::uint32_t grant) {
    ::new (static_cast<void*>(frame)) wire::FrameHeader{.kind = kind,
                                                        .flow = remote_id,
                                                        .records = records,
                                                        .session = session_out,
                                                        .sequence = sequence,
                                                        .acknowledged = receiver.acknowledged(),
                                                        .limit = receiver.grant(grant),
                                                        .bytes = bytes};
  }
  Share& share(const Link& link) { return shares[route->index_of(link)]; }
};

/// A flow that speaks for its route: any that the peer knows will do. Null: none is left.
inline Flow* control_flow(const Route& route) {
  Flow* found = nullptr;
  for (Flow* flow : route.flows) {
    if (flow->failed.load(std::memory_order_relaxed)) continue;
    found = flow;
    if (!flow->parting) break;  // one that the peer may have dropped speaks only where there is no other
  }
  return found;
}
/// Nothing more can be said on the route: its flows have failed, or its peer is being given up.
inline bool is_silent(const Route& route) { return control_flow(route) == nullptr || route.loss.on; }
/// The peer's memory is used past the engine.
inline bool used_directly(const Route& route) {
  return std::ranges::any_of(route.flows,
                             [](const Flow* flow) { return flow->direct.load(std::memory_order_relaxed); });
}
/// The peer has something to answer.
inline bool owes(const Route& route) {
  return std::ranges::any_of(route.flows,
                             [](const Flow* flow) { return flow->outstanding.load(std::memory_order_relaxed) != 0; });
}

}  // namespace railyard::transport
