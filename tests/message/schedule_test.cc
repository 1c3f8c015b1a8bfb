// Channels on a simulated network from a seed: rails die, packets are late, processes end, and every message arrives
// once, in order, whole. More seeds: RAILYARD_CHANNEL_SEEDS=first-count.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/log.hpp"
#include "channel_schedule.hpp"
#include "sanitized.hpp"

namespace railyard::message {
namespace {

#ifdef RAILYARD_SANITIZED
constexpr std::uint64_t kSeeds = 40;
#else
constexpr std::uint64_t kSeeds = 160;
#endif

/// What a simulated network does to the library is no news.
const bool kQuiet = (set_log_level(LogLevel::error), true);

struct Totals {
  std::uint64_t messages = 0;
  std::uint64_t channels = 0;
  std::uint64_t links_lost = 0;
  std::uint64_t replayed = 0;
  std::uint64_t fenced = 0;
  std::uint64_t aborts = 0;
  std::uint64_t deaths = 0;
};

Totals run_all(std::uint64_t first, std::uint64_t count, const sim::ScenarioOptions& options = {}) {
  Totals totals;
  int failures = 0;
  for (std::uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    const ScheduleOutcome outcome = run_channels(seed, options);
    totals.messages += outcome.messages;
    totals.channels += outcome.channels;
    totals.links_lost += outcome.links_lost;
    totals.replayed += outcome.replayed;
    totals.fenced += outcome.fenced;
    totals.aborts += outcome.aborts;
    totals.deaths += outcome.death ? 1 : 0;
    if (outcome.findings.empty()) continue;
    ++failures;
    std::string text;
    for (const std::string& finding : outcome.findings) text += "\n  " + finding;
    ADD_FAILURE() << "RAILYARD_CHANNEL_SEEDS=" << seed << "-1:" << text;
  }
  return totals;
}

sim::ScenarioOptions with_faults(const char* names) {
  sim::ScenarioOptions options;
  options.any_faults = false;
  options.faults = fabric::sim::parse_faults(names).value();
  return options;
}

TEST(ChannelSchedule, NothingGoesWrongWhereNothingFails) {
  const Totals totals = run_all(1, kSeeds / 8, with_faults("none"));
  EXPECT_GT(totals.messages, kSeeds);
}

TEST(ChannelSchedule, EveryMessageArrivesOnceAndWholeWhateverFails) {
  std::uint64_t first = 1;
  std::uint64_t count = kSeeds;
  if (const char* given = std::getenv("RAILYARD_CHANNEL_SEEDS")) {
    ASSERT_EQ(std::sscanf(given, "%lu-%lu", &first, &count), 2) << "RAILYARD_CHANNEL_SEEDS=first-count";
  }
  const Totals totals = run_all(first, count);
  if (count < kSeeds) return;
  // If the network had been peaceful, all this would have shown nothing.
  EXPECT_GT(totals.messages, 25 * kSeeds);
  EXPECT_GT(totals.links_lost, kSeeds / 4);
  EXPECT_GT(totals.replayed, kSeeds / 10);
  EXPECT_GT(totals.aborts, kSeeds / 4);
  EXPECT_GT(totals.deaths, kSeeds / 40);
}

TEST(ChannelSchedule, RailsThatDieUnderSharedChannelsCostNothing) {
  auto options = with_faults("kill,flap,black-hole");
  options.rails = 3;
  const Totals totals = run_all(10'001, kSeeds / 10, options);
  EXPECT_GT(totals.replayed, 0U);
}

TEST(ChannelSchedule, PacketsThatLandLateDoNoHarm) {
  auto options = with_faults("late-packets,reorder,delay");
  const Totals totals = run_all(20'001, kSeeds / 8, options);
  EXPECT_GT(totals.messages, kSeeds);
}

TEST(ChannelSchedule, APeerThatDiesIsToldOfAndNobodyElseIsHarmed) {
  auto options = with_faults("peer-death,kill");
  options.ranks = 3;
  const Totals totals = run_all(30'001, kSeeds / 8, options);
  EXPECT_GT(totals.deaths, kSeeds / 40);
}

// 1918: an end that had closed waited for the farewell of a peer that died in silence. 1976: a process died within its
// own close. 2823: a slow rail was given up as stuck in every one of its lives.
TEST(ChannelSchedule, SeedsThatFailedOnceDoSoNoMore) {
  for (const std::uint64_t seed : {1918U, 1976U, 2823U}) run_all(seed, 1);
}

TEST(ChannelSchedule, TheSameSeedReplaysExactly) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(run_channels(seed).digest, run_channels(seed).digest) << seed;
  }
}

}  // namespace
}  // namespace railyard::message
