#include "transport/link.hpp"

#include <gtest/gtest.h>

#include <deque>

namespace railyard::transport {
namespace {

constexpr LinkLimits kLimits{32 * 1024, 1024 * 1024, false};

/// Keeps a link busy over a path of the given rate for a while; returns the time at the end.
std::int64_t saturate(Link& link, double rate, std::int64_t now, std::int64_t until) {
  struct Flight {
    std::uint64_t bytes;
    RateStamp stamp;
    std::int64_t arrives;
  };
  std::deque<Flight> flights;
  std::int64_t wire_free = now;
  while (now < until) {
    while (link.has_room()) {
      const std::uint64_t bytes = link.chunk();
      wire_free = std::max(wire_free, now) + static_cast<std::int64_t>(static_cast<double>(bytes) / rate * 1e9);
      flights.push_back({bytes, link.chunk_posted(bytes, now), wire_free + 100'000});
    }
    now = flights.front().arrives;
    link.chunk_delivered(flights.front().bytes, flights.front().stamp, now);
    flights.pop_front();
  }
  for (const auto& flight : flights) link.chunk_dropped(flight.bytes);
  return now;
}

TEST(Link, LearnsTheRateOfItsPath) {
  for (const double rate : {12.5e6, 50e6, 1e9}) {
    Link link(0, 0, 0, SIZE_MAX, kLimits);
    saturate(link, rate, 0, 1'000'000'000);
    EXPECT_NEAR(link.rate(), rate, rate * 0.1);
  }
}

TEST(Link, FollowsARateThatDrops) {
  Link link(0, 0, 0, SIZE_MAX, kLimits);
  const std::int64_t now = saturate(link, 100e6, 0, 500'000'000);
  saturate(link, 10e6, now, now + 2'000'000'000);
  EXPECT_NEAR(link.rate(), 10e6, 2e6);
}

TEST(Link, ASlowLinkTakesSmallerChunksAndFewer) {
  Link slow(0, 0, 0, SIZE_MAX, kLimits);
  Link fast(1, 1, 0, SIZE_MAX, kLimits);
  saturate(slow, 10e6, 0, 500'000'000);
  saturate(fast, 400e6, 0, 500'000'000);
  EXPECT_LT(slow.chunk(), fast.chunk());
  EXPECT_GE(slow.chunk(), kLimits.chunk_min);
}

TEST(Link, LoadIsTimeNotBytes) {
  Link slow(0, 0, 0, SIZE_MAX, kLimits);
  Link fast(1, 1, 0, SIZE_MAX, kLimits);
  saturate(slow, 10e6, 0, 500'000'000);
  saturate(fast, 100e6, 0, 500'000'000);
  slow.chunk_posted(100'000, 0);
  fast.chunk_posted(200'000, 0);
  EXPECT_GT(slow.load(), fast.load());
}

TEST(Link, AnIdleSpellIsNotTakenForASlowPath) {
  Link link(0, 0, 0, SIZE_MAX, kLimits);
  const std::int64_t now = saturate(link, 100e6, 0, 500'000'000);
  const double before = link.rate();
  for (int i = 1; i <= 100; ++i) {
    const std::int64_t at = now + i * 1'000'000'000LL;
    const auto stamp = link.chunk_posted(32 * 1024, at);
    link.chunk_delivered(32 * 1024, stamp, at + 427'680);  // the path's own rate and delay
  }
  EXPECT_GT(link.rate(), before * 0.9);
}

TEST(Link, AloneItCutsNothingSmall) {
  const Link link(0, 0, 0, SIZE_MAX, {32 * 1024, 1024 * 1024, true});
  EXPECT_EQ(link.chunk(), 1024U * 1024U);
}

TEST(Link, RespectsWhatTheRailCanWrite) {
  const Link link(0, 0, 0, 8192, {32 * 1024, 1024 * 1024, true});
  EXPECT_EQ(link.chunk(), 8192U);
}

}  // namespace
}  // namespace railyard::transport
