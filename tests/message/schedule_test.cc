// Channels on simulated rails: programs of messages, faults and ends, each from one seed, against a model of what every
// receive must hold (src/sim/channel_schedule.hpp). `railyard sim --programs channels --schedules 1 --seed S` replays
// one.
#include <gtest/gtest.h>

#include <string>

#include "base/log.hpp"
#include "sanitized.hpp"
#include "sim/campaign.hpp"

namespace railyard {
namespace {

#ifdef RAILYARD_SANITIZED
constexpr std::uint64_t kSeeds = 40;
#else
constexpr std::uint64_t kSeeds = 160;
#endif
/// What a simulated network does to the library is no news.
const bool kQuietSchedules = (set_log_level(LogLevel::error), true);

sim::ScenarioOptions with_faults(const char* names) {
  sim::ScenarioOptions options;
  options.programs = sim::Programs::channels;
  options.any_faults = false;
  options.faults = fabric::sim::parse_faults(names).value();
  return options;
}

sim::Totals run_all(std::uint64_t first, std::uint64_t count, const sim::ScenarioOptions& options) {
  auto totals = sim::run_schedules(first, count, options);
  if (!totals) {
    ADD_FAILURE() << totals.error().text();
    return {};
  }
  std::string found;
  for (const std::string& note : totals->first_notes) found += "\n  " + note;
  EXPECT_TRUE(totals->clean()) << "railyard sim --programs channels --schedules 1 --seed "
                               << totals->first_failing_seed.value_or(0) << found;
  return std::move(*totals);
}

TEST(ChannelSchedule, NothingGoesWrongWhereNothingFails) {
  EXPECT_GT(run_all(1, kSeeds / 8, with_faults("none")).operations, kSeeds);
}

TEST(ChannelSchedule, EveryMessageArrivesOnceAndWholeWhateverFails) {
  sim::ScenarioOptions options;
  options.programs = sim::Programs::channels;
  const auto totals = run_all(1, kSeeds, options);
  // If the network had been peaceful, all this would have shown nothing.
  EXPECT_GT(totals.operations, 20 * kSeeds);
  EXPECT_GT(totals.links_lost, kSeeds / 4);
  EXPECT_GT(totals.replayed, kSeeds / 10);
  EXPECT_GT(totals.deaths, kSeeds / 40);
}

TEST(ChannelSchedule, RailsThatDieUnderSharedChannelsCostNothing) {
  auto options = with_faults("kill,flap,black-hole");
  options.rails = 3;
  EXPECT_GT(run_all(10'001, kSeeds / 8, options).replayed, 0U);
}

TEST(ChannelSchedule, PacketsThatLandLateDoNoHarm) {
  EXPECT_GT(run_all(20'001, kSeeds / 8, with_faults("late-packets,reorder,delay")).operations, kSeeds);
}

TEST(ChannelSchedule, APeerThatDiesIsToldOfAndNobodyElseIsHarmed) {
  auto options = with_faults("peer-death,kill");
  options.ranks = 3;
  EXPECT_GT(run_all(30'001, kSeeds / 8, options).deaths, kSeeds / 40);
}

}  // namespace
}  // namespace railyard
