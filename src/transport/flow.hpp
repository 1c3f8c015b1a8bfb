/// Flow: one sequence between this process and a peer, in each direction, over all links of its route. A window has one
/// for each peer, a channel has one of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
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

class Engine;
struct Flow;

/// Who takes the messages of a flow. Called while arrivals are handled: changes state only, posts nothing (promise 7).
class Inbox {
 public:
  virtual ~Inbox() = default;
  /// A message, in its turn. False: it is not one, and is counted as malformed.
  virtual bool on_message(const wire::RecordHeader& header, std::span<const std::byte> body) = 0;
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

/// How far a frame has taken effect, record by record.
struct FrameProgress {
  FrameProgress(memory::Buffer& of, const wire::FrameHeader& header, bool skip_first)
      : buffer(&of),
        reader({of.data, of.bytes}, header),
        sequence(header.sequence),
        records(header.records),
        skip(skip_first) {}

  memory::Buffer* buffer;
  wire::RecordReader reader;
  std::uint32_t sequence;
  std::uint32_t records;
  std::uint32_t index = 0;             ///< of the record at hand
  bool skip;                           ///< what follows belongs to an operation that was refused
  wire::RecordReader::Record waiting;  ///< the record at hand, where it waits for a word of a GPU's memory
};

struct Flow {
  // Who.
  int peer = -1;
  std::uint16_t id = 0;           ///< what the peer puts into its frames and immediates
  std::uint16_t remote_id = 0;    ///< what the peer calls this flow
  std::uint64_t session_out = 0;  ///< proves us to the peer
  std::uint64_t session_in = 0;   ///< proves the peer to us
  Route* route = nullptr;
  std::vector<Share> shares;      ///< by the route's links
  Inbox* inbox = nullptr;         ///< null: no messages on this flow
  std::uint32_t first_link = 0;   ///< where frames of an idle flow go: spread by rank, so that not all use rail 0
  std::uint32_t first_chunk = 0;  ///< where the next chunk of an idle flow goes: each link in turn

  // Its two halves: written by the progress lock's holder.
  FlowSender sender;
  FlowReceiver receiver;

  /// The frame whose turn it is waits for a word in the memory of a GPU (device_words.cc); what follows it, too.
  std::optional<FrameProgress> applying;

  // Completion: written by the progress lock's holder, read by anyone. Release on store: whoever sees an operation
  // complete sees what it brought (a get's bytes, a fetched value).
  std::atomic<std::uint64_t> completed{0};    ///< operations of the sequence
  std::atomic<std::uint64_t> outstanding{0};  ///< operations of any kind
  std::uint64_t submitted = 0;
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

  // Refusals (refuse.cc).
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

  // Membership in the engine's lists.
  bool in_active = false;
  bool in_reporting = false;
  bool in_ready = false;
  bool in_refusing = false;

  Share& share(const Link& link) { return shares[route->index_of(link)]; }
};

}  // namespace railyard::transport
