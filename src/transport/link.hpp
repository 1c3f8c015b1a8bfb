/// Link: one (local rail, remote rail) pair to one peer: what is in flight on it and how fast it delivers (promise 5).
#pragma once

#include <cstdint>

#include "fabric/rail.hpp"

namespace railyard::transport {

/// Limits that a link derives its own from.
struct LinkLimits {
  std::uint32_t chunk_min = 0;
  std::uint32_t chunk_max = 0;
  bool alone = false;  ///< the only link to its peer: nothing to balance, so chunks are as large as may be
};

/// What a piece remembers of its link from post to delivery, to turn the delivery into a rate sample.
struct RateStamp {
  std::uint64_t delivered_before = 0;
  std::int64_t delivered_at = 0;
  std::int64_t posted_at = 0;
  bool saturated = false;  ///< the link, not the caller, was the limit
};

class Link {
 public:
  Link(std::uint16_t rail, std::uint16_t remote_rail, fabric::RemoteId remote, double line_rate, std::size_t max_write,
       const LinkLimits& limits);

  std::uint16_t rail() const { return rail_; }
  std::uint16_t remote_rail() const { return remote_rail_; }
  fabric::RemoteId remote() const { return remote_; }
  /// Bytes per second, measured; 0 before the first sample.
  double rate() const { return rate_; }

  /// Seconds, by estimate, until what is in flight is delivered: the lower, the better a choice.
  double load() const;
  /// How large a piece this link should take next: about two milliseconds of its rate.
  std::uint32_t chunk() const { return chunk_; }
  /// Whether one more piece may be in flight: about twice what the path holds, so that a slow rail takes no more than
  /// its share.
  bool has_room() const { return bytes_in_flight_ < window_ || bytes_in_flight_ == 0; }
  std::uint64_t bytes_in_flight() const { return bytes_in_flight_; }

  std::uint32_t frames_in_flight() const { return frames_in_flight_; }
  void frame_posted() { ++frames_in_flight_; }
  void frame_done() { --frames_in_flight_; }

  RateStamp piece_posted(std::uint64_t bytes, std::int64_t now);
  void piece_delivered(std::uint64_t bytes, const RateStamp& stamp, std::int64_t now);
  /// A piece that will never be delivered.
  void piece_dropped(std::uint64_t bytes) { bytes_in_flight_ -= bytes; }

 private:
  void resize();

  std::uint16_t rail_;
  std::uint16_t remote_rail_;
  fabric::RemoteId remote_;
  std::uint32_t frames_in_flight_ = 0;
  std::uint64_t bytes_in_flight_ = 0;
  std::uint64_t delivered_ = 0;
  std::int64_t delivered_at_ = 0;
  std::int64_t round_trip_ = 0;  ///< smallest seen; 0: none yet
  double rate_ = 0;
  double line_rate_;
  LinkLimits limits_;
  std::uint32_t chunk_ = 0;
  std::uint64_t window_ = 0;
};

}  // namespace railyard::transport
