#include "transport/link.hpp"

#include <algorithm>

namespace railyard::transport {
namespace {

constexpr double kChunkSeconds = 2e-3;    // long enough to hide the cost of a chunk, short enough to balance
constexpr double kHorizonSeconds = 8e-3;  // floor of the time a window covers: both ends are scheduled by an OS
constexpr double kHorizonMost = 50e-3;
constexpr std::uint32_t kChunkStep = 4096;
constexpr std::uint32_t kFirstChunks = 4;  // chunks in flight before the first sample
constexpr double kAssumedRate = 100e6;     // for load() before the first sample: any constant, equal for all links
constexpr double kFrameCost = 512;         // a small frame's weight in bytes, for load()
constexpr double kLateFactor = 2;          // of the time that a chunk should take: the path has become slower
constexpr double kLateSlack = 200e-6;      // both ends are scheduled by an OS
constexpr double kSlowestRate = 1e6;  // that is taken for one: a link is slower than we know before the first sample
constexpr double kChunksToDoubt = 2;  // so many chunks' time without a sign that one of them moves
constexpr std::int64_t kTripsPerDeadline = 4;
constexpr std::int64_t kMostDeadline = 1'000'000'000;

}  // namespace

const char* to_string(LossCause cause) {
  static constexpr const char* kTexts[] = {"the connection broke",
                                           "no answer while other links answer",
                                           "it answers but does not deliver",
                                           "the local interface is down",
                                           "the peer's interface is down",
                                           "no connection came about",
                                           "no link answers",
                                           "memory that it used was taken back"};
  const auto index = static_cast<std::size_t>(cause);
  return index < std::size(kTexts) ? kTexts[index] : "a cause of a newer version";
}

Link::Link(std::uint16_t rail, std::uint16_t remote_rail, double line_rate, std::size_t max_write,
           const LinkLimits& limits)
    : rail_(rail), remote_rail_(remote_rail), line_rate_(line_rate), limits_(limits) {
  const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(max_write, UINT32_MAX));
  limits_.chunk_max = std::min(limits_.chunk_max, most);
  limits_.chunk_min = std::min(limits_.chunk_min, limits_.chunk_max);
  resize();
}

void Link::restart(fabric::RemoteId remote) {
  remote_ = remote;
  rate_ = 0;
  round_trip_ = smoothed_trip_ = 0;
  delivered_at_ = 0;
  resize();
}

void Link::note_trip(std::int64_t nanoseconds) {
  const std::int64_t trip = std::max<std::int64_t>(nanoseconds, 1);
  smoothed_trip_ = smoothed_trip_ == 0 ? trip : smoothed_trip_ + (trip - smoothed_trip_) / 8;
}

std::int64_t Link::deadline(std::int64_t floor) const {
  return std::clamp(kTripsPerDeadline * smoothed_trip_, floor, std::max(floor, kMostDeadline));
}

std::int64_t Link::chunk_time() const {
  const auto bytes = static_cast<double>(std::min<std::uint64_t>(bytes_in_flight_, chunk_));
  return static_cast<std::int64_t>(kChunksToDoubt * bytes * 1e9 / (rate_ > 0 ? rate_ : kSlowestRate));
}

double Link::load() const {
  const double bytes = static_cast<double>(bytes_in_flight_) + kFrameCost * frames_in_flight_;
  return bytes / (rate_ > 0 ? rate_ : kAssumedRate);
}

RateStamp Link::chunk_posted(std::uint64_t bytes, std::int64_t now) {
  if (bytes_in_flight_ == 0) delivered_at_ = now;  // an idle spell is not a slow one
  bytes_in_flight_ += bytes;
  return {delivered_, delivered_at_, now, 2 * bytes_in_flight_ >= window_};
}

void Link::chunk_delivered(std::uint64_t bytes, const RateStamp& stamp, std::int64_t now) {
  bytes_in_flight_ -= bytes;
  delivered_ += bytes;
  delivered_at_ = now;
  const std::int64_t trip = std::max<std::int64_t>(now - stamp.posted_at, 1);
  const bool late = is_late(bytes, trip);
  if (round_trip_ == 0 || trip < round_trip_) round_trip_ = trip;
  note_trip(trip);
  const std::int64_t span = std::max<std::int64_t>(now - stamp.delivered_at, 1);
  const double sample = static_cast<double>(delivered_ - stamp.delivered_before) * 1e9 / static_cast<double>(span);
  // A saturated link's samples are its rate, up or down. Those of an idle one are low because of the caller; they say
  // something if they are higher, or if the chunk took much longer than it should have.
  if (rate_ == 0) {
    rate_ = sample;
  } else if (stamp.saturated || sample > rate_ || late) {
    rate_ += (sample - rate_) / 8;
  }
  resize();
}

bool Link::is_late(std::uint64_t bytes, std::int64_t trip) const {
  const double expected = 1e-9 * static_cast<double>(round_trip_) + time_of(bytes);
  return rate_ > 0 && 1e-9 * static_cast<double>(trip) > kLateFactor * expected + kLateSlack;
}

void Link::resize() {
  const double rate = rate_ > 0 ? rate_ : line_rate_;
  if (limits_.alone) {
    chunk_ = limits_.chunk_max;
  } else if (rate > 0) {
    const double wanted = std::min(rate * kChunkSeconds, double{1U << 30U});
    const std::uint32_t rounded = static_cast<std::uint32_t>(wanted) / kChunkStep * kChunkStep;
    chunk_ = std::clamp(rounded, limits_.chunk_min, limits_.chunk_max);
  } else {
    chunk_ = limits_.chunk_min;
  }
  const double horizon = std::clamp(2e-9 * static_cast<double>(round_trip_), kHorizonSeconds, kHorizonMost);
  const auto path = static_cast<std::uint64_t>(rate * horizon);
  window_ = std::max<std::uint64_t>(path, std::uint64_t{kFirstChunks} * chunk_);
}

}  // namespace railyard::transport
