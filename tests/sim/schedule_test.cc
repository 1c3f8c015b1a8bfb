// Whole schedules: the library on the simulated network, everything it does checked.
#include "sim/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/log.hpp"
#include "sanitized.hpp"
#include "sim/campaign.hpp"
#include "sim/channel_schedule.hpp"
#include "sim/goodput.hpp"
#include "sim/memory_use.hpp"

namespace railyard::sim {
namespace {

#ifdef RAILYARD_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// What a simulated network does to the library is no news.
const bool kQuiet = (set_log_level(LogLevel::error), true);

std::string describe(const Totals& totals) {
  std::string text;
  if (totals.first_failing_seed)
    text = "railyard sim --schedules 1 --seed " + std::to_string(*totals.first_failing_seed);
  for (const std::string& note : totals.first_notes) text += "\n  " + note;
  return text;
}

TEST(SimSchedule, TheSameSeedReplaysExactly) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto first = run_schedule(seed, {});
    const auto second = run_schedule(seed, {});
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(first->digest, second->digest) << seed;
    EXPECT_EQ(first->operations, second->operations);
    EXPECT_EQ(first->virtual_time, second->virtual_time);
  }
}

TEST(SimSchedule, TheSameSeedOfChannelsReplaysExactly) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto first = run_channel_schedule(seed, {});
    const auto second = run_channel_schedule(seed, {});
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(first->digest, second->digest) << seed;
    EXPECT_EQ(first->operations, second->operations);
  }
}

TEST(SimSchedule, BothProgramsAreDrawn) {
  ScenarioOptions options;
  options.any_faults = false;
  const auto drawn = run_schedules(1, 30, options);
  options.programs = Programs::windows;
  const auto windows = run_schedules(1, 30, options);
  options.programs = Programs::channels;
  const auto channels = run_schedules(1, 30, options);
  ASSERT_TRUE(drawn.ok() && windows.ok() && channels.ok());
  EXPECT_NE(drawn->operations, windows->operations);
  EXPECT_NE(drawn->operations, channels->operations);
}

TEST(SimSchedule, DifferentSeedsDiffer) {
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const auto outcome = run_schedule(seed, {});
    ASSERT_TRUE(outcome.ok());
    digests.insert(outcome->digest);
  }
  EXPECT_EQ(digests.size(), 50U);
}

TEST(SimSchedule, PlansCoverWhatTheyShould) {
  // If a draw went wrong, everything below would pass for want of anything to find.
  bool reorders = false;
  bool orderly = false;
  bool long_one = false;
  bool uneven = false;
  bool binds = false;
  bool manual = false;
  bool large = false;
  bool fails = false;
  bool dies = false;
  bool timed = false;
  bool peaceful = false;
  bool succeeds_late = false;
  bool partial = false;
  bool pauses = false;
  bool unknown_liveness = false;
  bool deregisters = false;
  bool refusals = false;
  bool aborts = false;
  bool intrudes = false;
  bool breaks = false;
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed) {
    const Plan plan = make_plan(seed, {});
    const auto& rail = plan.fabric.rails.front();
    (rail.reorder_probability > 0 ? reorders : orderly) = true;
    long_one = long_one || plan.behaviour.operations > 1'000;
    uneven = uneven || plan.rails.front() != plan.rails.back();
    binds = binds || rail.binds_registrations;
    manual = manual || !rail.progresses_alone;
    large = large || plan.behaviour.large;
    (plan.fabric.changes.empty() ? peaceful : fails) = true;
    dies = dies || !plan.fabric.deaths.empty();
    timed = timed || rail.fencing == fabric::Fencing::timed;
    succeeds_late = succeeds_late || rail.late_success_probability > 0;
    partial = partial || rail.partial_probability > 0;
    pauses = pauses || !plan.fabric.pauses.empty();
    unknown_liveness = unknown_liveness || !rail.knows_liveness;
    deregisters = deregisters || plan.fabric.programs.deregisters;
    refusals = refusals || plan.fabric.programs.refusals;
    aborts = aborts || plan.fabric.programs.aborts;
    intrudes = intrudes || !plan.fabric.intrusions.empty();
    breaks = breaks || rail.refusal_breaks_link;
  }
  EXPECT_TRUE(reorders && orderly && long_one && uneven && binds && manual && large);
  EXPECT_TRUE(fails && peaceful && dies && timed);
  EXPECT_TRUE(succeeds_late && partial && pauses && unknown_liveness && intrudes);
  EXPECT_TRUE(deregisters && refusals && aborts && breaks);
}

TEST(SimSchedule, OptionsAreKept) {
  ScenarioOptions options;
  options.ranks = 7;
  options.rails = 2;
  options.operations = 50;
  options.any_faults = false;
  options.faults = fabric::sim::parse_faults("reorder,busy").value();
  const Plan plan = make_plan(3, options);
  EXPECT_EQ(plan.ranks, 7U);
  EXPECT_EQ(plan.fabric.rails.size(), 14U);
  EXPECT_EQ(plan.behaviour.operations, 50U);
  for (const auto& rail : plan.fabric.rails) {
    EXPECT_GT(rail.reorder_probability, 0);
    EXPECT_GT(rail.busy_probability, 0);
    EXPECT_EQ(rail.delay_probability, 0);
  }
  const auto totals = run_schedules(3, 5, options);
  ASSERT_TRUE(totals.ok());
  EXPECT_TRUE(totals->clean()) << describe(*totals);
  EXPECT_GE(totals->operations, 250U);
}

TEST(SimSchedule, ManyRanks) {
  ScenarioOptions options;
  options.ranks = 32;
  options.rails = 4;
  options.operations = 2'000;
  const auto totals = run_schedules(1, 2, options);
  ASSERT_TRUE(totals.ok());
  EXPECT_TRUE(totals->clean()) << describe(*totals);
}

TEST(SimSchedule, OneRankAlone) {
  ScenarioOptions options;
  options.ranks = 1;
  const auto totals = run_schedules(1, 20, options);
  ASSERT_TRUE(totals.ok());
  EXPECT_TRUE(totals->clean()) << describe(*totals);
}

/// Each kind of fault alone, then the 10,000 of the promise in four parts, so that several cores share them.
class SimFaultKind : public testing::TestWithParam<const char*> {};

TEST_P(SimFaultKind, AloneFindsNothing) {
  ScenarioOptions options;
  options.any_faults = false;
  options.faults = fabric::sim::parse_faults(GetParam()).value();
  const auto totals = run_schedules(100'000, kSanitized ? 20 : 200, options);
  ASSERT_TRUE(totals.ok());
  EXPECT_TRUE(totals->clean()) << describe(*totals);
}

INSTANTIATE_TEST_SUITE_P(Sim, SimFaultKind,
                         testing::Values("none", "reorder", "delay", "slow-rail", "busy", "late-completion", "kill",
                                         "flap", "black-hole", "lost-completion", "late-packets", "two-of-four",
                                         "peer-death", "late-success", "partial-writes", "pauses", "deregister",
                                         "refusals", "aborts", "unauthenticated"));

TEST(SimSchedule, WithoutFencesTheSameSeedsFindGhosts) {
  ScenarioOptions options;
  options.any_faults = false;
  options.faults = fabric::sim::parse_faults("late-packets,kill").value();
  constexpr std::uint64_t kSchedules = 60;
  const auto fenced = run_schedules(200'000, kSchedules, options);
  ASSERT_TRUE(fenced.ok());
  EXPECT_TRUE(fenced->clean()) << describe(*fenced);
  EXPECT_GT(fenced->packets_fenced, 0U);
  options.fence = false;
  const auto unfenced = run_schedules(200'000, kSchedules, options);
  ASSERT_TRUE(unfenced.ok());
  EXPECT_GT(unfenced->ghosts, 0U);
}

TEST(SimGoodput, ASmallWorldCarriesNearlyWhatItsStandingRailsCould) {
  GoodputOptions options;
  options.ranks = 64;
  options.seconds = 1.2;
  options.failing = 0.03;
  const auto result = measure_goodput(options);
  ASSERT_TRUE(result.ok()) << result.error().text();
  EXPECT_GT(result->failures, 5U);
  EXPECT_EQ(result->wrong, 0U);
  EXPECT_EQ(result->refused, 0U);
  EXPECT_GT(result->replayed, 0U);
  EXPECT_GE(result->share, 0.95);  // virtual time: the same on every machine
  EXPECT_EQ(result->steps.size(), 120U);
  EXPECT_LT(std::ranges::min(result->steps, {}, &GoodputStep::possible).possible, result->line_rate);
  options.ranks = 1;
  EXPECT_EQ(measure_goodput(options).status(), Status::out_of_range);
}

class SimSeeds : public testing::TestWithParam<std::uint64_t> {};

TEST_P(SimSeeds, NothingLostDoubledEarlyOrWrong) {
  constexpr std::uint64_t kSchedules = kSanitized ? 150 : 2'500;
  const auto totals = run_schedules(GetParam(), kSchedules, {});
  ASSERT_TRUE(totals.ok()) << totals.error().text();
  EXPECT_EQ(totals->schedules, kSchedules);
  EXPECT_TRUE(totals->clean()) << describe(*totals);
  EXPECT_GT(totals->held_out_of_order, kSchedules) << "nothing was out of order: nothing was tried";
}

INSTANTIATE_TEST_SUITE_P(Sim, SimSeeds, testing::Values(1, 2'501, 5'001, 7'501));

/// Found by long runs, far from the seeds of every day.
TEST(SimSchedule, SeedsThatOnceFoundSomethingAreClean) {
  for (const std::uint64_t seed :
       {17'208U, 17'814U, 21'892U, 32'279U, 43'657U, 85'822U, 300'502U, 308'756U, 309'182U}) {
    const auto totals = run_schedules(seed, 1, {});
    ASSERT_TRUE(totals.ok());
    EXPECT_TRUE(totals->clean()) << describe(*totals);
  }
}

TEST(SimMemory, IsMeasuredPerPeer) {
  const auto use = measure_memory(32, 2);
  if (kSanitized) {
    EXPECT_EQ(use.status(), Status::unsupported);
    return;
  }
  ASSERT_TRUE(use.ok()) << use.error().text();
  EXPECT_GT(use->per_rank, 1'000);
  EXPECT_GT(use->per_known_peer, 0);
  EXPECT_LT(use->per_known_peer, 4'096);
  EXPECT_GT(use->per_active_peer, 0);
  EXPECT_GT(use->resident, 0);
  EXPECT_EQ(measure_memory(2, 2).status(), Status::out_of_range);
}

}  // namespace
}  // namespace railyard::sim
