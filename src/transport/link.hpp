/// Link: one (local rail, remote rail) pair to one peer: what is in flight on it and how fast it delivers (promise 5).
#pragma once

#include <atomic>
#include <cstdint>

#include "fabric/rail.hpp"
#include "transport/link_state.hpp"

namespace railyard::transport {

/// Limits that a link derives its own from.
struct LinkLimits {
  std::uint32_t chunk_min = 0;
  std::uint32_t chunk_max = 0;
  bool alone = false;  ///< the only link to its peer: nothing to balance, so chunks are as large as may be
};

/// Why a link was given up, as far as it can be told.
enum class LossCause : std::uint8_t {
  broken,       ///< the driver said so: an error completion, a closed connection
  silent,       ///< it does not answer while others do: the path between
  stuck,        ///< it answers but does not deliver
  local_down,   ///< our own interface is down
  remote_down,  ///< the peer says that its interface is down
  unconnected,  ///< no connection came about
  mute,         ///< no link answers, for half of the time that a peer is given
  revoked,      ///< it carried something of memory that was taken back
};
const char* to_string(LossCause cause);

/// How a link is. Times here and below are the engine's health clock, where nothing else is said.
struct LinkHealth {
  /// Takes the event in; what it returns is the caller's to do.
  LinkAction on(LinkEvent event) {
    const LinkStep next = step(state, event);
    state = next.next;
    return next.action;
  }
  /// True: it was connecting until now.
  bool taken() {
    stood = true;
    if (state != LinkState::connecting) [[likely]]
      return false;
    on(LinkEvent::taken);
    return true;
  }

  LinkState state = LinkState::connecting;
  bool stood = false;  ///< has taken something since it was connected
  LossCause cause = LossCause::broken;
  bool doubtful = false;    ///< it broke, and something that it carried may be why
  std::uint32_t epoch = 0;  ///< which epoch
  std::int64_t since = 0;   ///< when `state` began
  // On the clock itself, for people: the health clock stands still while everybody sleeps.
  std::int64_t state_at = 0;  ///< when `state` began; of a link that is up: when it was connected, or was late last
  std::int64_t lost_at = 0;   ///< when it last went down; 0: never
};

/// What pings have shown of a link: written by Probes and Notices, and by Reconnects when a new epoch begins.
struct LinkPings {
  std::uint32_t asked = 0;        ///< round of the last ping; 0: none
  std::uint32_t epoch_began = 0;  ///< the last round before this epoch
  std::uint32_t answered = 0;     ///< round of the last answer
  std::uint8_t in_a_row = 0;      ///< answered while trying
  std::uint32_t vouched = 0;      ///< the last round that its rail has answered for: the peer's machine takes the bytes
  std::int64_t vouched_since = 0;  ///< since when it has for one that did not answer; 0: it has not
  std::int64_t asked_at = 0;       ///< on the clock itself
  std::int64_t answered_at = 0;
};

/// How attempts to connect a link have gone, and when the next one is due: written by Reconnects, and by Failover and
/// Notices where a loss or the peer says when.
struct LinkAttempts {
  bool refused = false;        ///< the last one found the peer's machine, and nobody there
  bool unverified = false;     ///< it was refused by somebody who may not be the peer's machine
  bool told = false;           ///< its loss was told as a warning: its return is, too
  std::uint8_t unwanted = 0;   ///< in a row that the peer's rail refused
  std::uint32_t failures = 0;  ///< in a row that came to nothing
  std::int64_t back_off = 0;
  std::int64_t next_try = 0;
};

/// What a link was last seen to bring to the peer: written by Health and Probes.
struct LinkDeliveries {
  std::uint64_t seen = 0;     ///< bytes delivered at the last look
  std::int64_t since = 0;     ///< when that last changed, or nothing was in flight
  std::uint64_t taken = 0;    ///< how much the peer's machine had taken at the last look
  std::int64_t taken_at = 0;  ///< when that was last seen to grow
};

/// What a chunk remembers of its link from post to delivery, to turn the delivery into a rate sample.
struct RateStamp {
  std::uint64_t delivered_before = 0;
  std::int64_t delivered_at = 0;
  std::int64_t posted_at = 0;
  bool saturated = false;  ///< the link, not the caller, was the limit
};

class Link {
 public:
  Link(std::uint16_t rail, std::uint16_t remote_rail, double line_rate, std::size_t max_write,
       const LinkLimits& limits);

  std::uint16_t rail() const { return rail_; }
  std::uint16_t remote_rail() const { return remote_rail_; }
  fabric::RemoteId remote() const { return remote_; }
  /// Whether new segments may go on it.
  bool up() const { return carries(health.state); }
  bool suspect() const { return health.state == LinkState::suspect; }
  /// A new epoch: another connection, nothing known of its speed.
  void restart(fabric::RemoteId remote);
  /// Bytes per second, measured; 0 before the first sample.
  double rate() const { return rate_; }

  /// Seconds, by estimate, until what is in flight is delivered: the lower, the better a choice.
  double load() const;
  /// Seconds, by estimate, that so many bytes take; 0 while nothing is known.
  double time_of(std::uint64_t bytes) const { return rate_ > 0 ? static_cast<double>(bytes) / rate_ : 0; }
  /// Nothing has shown its speed for a while.
  bool stale(std::int64_t now) const { return bytes_in_flight_ == 0 && now - delivered_at_ > kStaleNanoseconds; }
  /// How large a chunk this link should take next: about two milliseconds of its rate.
  std::uint32_t chunk() const { return chunk_; }
  /// Whether one more chunk may be in flight: about twice what the path holds, so that a slow rail takes no more than
  /// its share.
  bool has_room() const { return bytes_in_flight_ < window_ || bytes_in_flight_ == 0; }
  std::uint64_t bytes_in_flight() const { return bytes_in_flight_; }
  /// What may be in flight on it.
  std::uint64_t window() const { return window_; }

  std::uint32_t frames_in_flight() const { return frames_in_flight_; }
  void frame_posted() { ++frames_in_flight_; }
  void frame_done() { --frames_in_flight_; }

  RateStamp chunk_posted(std::uint64_t bytes, std::int64_t now);
  void chunk_delivered(std::uint64_t bytes, const RateStamp& stamp, std::int64_t now);
  /// How long its chunks and frames take: histograms of its record; null: nothing is published.
  std::atomic<std::uint64_t>* chunk_latency = nullptr;
  std::atomic<std::uint64_t>* frame_latency = nullptr;
  /// A chunk that will never be delivered.
  void chunk_dropped(std::uint64_t bytes) { bytes_in_flight_ -= bytes; }
  std::uint64_t delivered() const { return delivered_; }
  bool idle() const { return bytes_in_flight_ == 0 && frames_in_flight_ == 0; }

  std::uint32_t reports_in_flight() const { return reports_in_flight_; }
  void report_posted() { ++reports_in_flight_; }
  void report_done() { --reports_in_flight_; }

  /// A time from post to answer, for the deadline.
  void note_trip(std::int64_t nanoseconds);
  bool knows_trip() const { return smoothed_trip_ != 0; }
  /// How long an answer may take before something is wrong: four smoothed round trips, not below the floor.
  std::int64_t deadline(std::int64_t floor) const;

  /// How long it may take until the peer's machine is seen to take more of a chunk that is under way: a slow link
  /// brings all of it at once. 0: none is.
  std::int64_t chunk_time() const;

  LinkHealth health;
  LinkPings pings;
  LinkAttempts attempts;
  LinkDeliveries deliveries;
  const void* sole = nullptr;  ///< a chunk that is to be alone on the link, to find out whether it breaks it

 private:
  static constexpr std::int64_t kStaleNanoseconds = 250'000'000;

  void resize();
  bool is_late(std::uint64_t bytes, std::int64_t trip) const;

  std::uint16_t rail_;
  std::uint16_t remote_rail_;
  fabric::RemoteId remote_ = UINT32_MAX;  ///< that is none: it has never been connected
  std::uint32_t frames_in_flight_ = 0;
  std::uint32_t reports_in_flight_ = 0;
  std::uint64_t bytes_in_flight_ = 0;
  std::uint64_t delivered_ = 0;
  std::int64_t delivered_at_ = 0;  ///< the last one; or when one was posted after an idle spell
  std::int64_t round_trip_ = 0;    ///< smallest seen; 0: none yet
  std::int64_t smoothed_trip_ = 0;
  double rate_ = 0;
  double line_rate_;
  LinkLimits limits_;
  std::uint32_t chunk_ = 0;
  std::uint64_t window_ = 0;
};

}  // namespace railyard::transport
