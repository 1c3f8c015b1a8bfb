#include "sim/campaign.hpp"

#include <fmt/format.h>

#include "sim/channel_schedule.hpp"

namespace railyard::sim {

void Totals::add(std::uint64_t seed, const Outcome& outcome) {
  const Findings& findings = outcome.findings;
  ++schedules;
  operations += outcome.operations;
  lost += findings.count(Finding::lost);
  doubled += findings.count(Finding::doubled);
  early += findings.count(Finding::early);
  ghosts += findings.count(Finding::ghost);
  corrupt += findings.count(Finding::corrupt);
  violations += findings.count(Finding::violation);
  packets += outcome.packets;
  held_out_of_order += outcome.held_out_of_order;
  busy += outcome.busy;
  links_lost += outcome.links_lost;
  replayed += outcome.replayed;
  packets_fenced += outcome.packets_fenced;
  deaths += outcome.death ? 1U : 0U;
  virtual_seconds += static_cast<double>(outcome.virtual_time) * 1e-9;
  if (findings.clean()) return;
  ++failed_schedules;
  if (first_failing_seed) {
    if (more_seeds.size() < kMostSeeds) more_seeds.push_back(seed);
    return;
  }
  first_failing_seed = seed;
  first_notes = findings.notes();
}

namespace {

/// Drawn from the seed alone, and apart from everything else that is.
bool uses_channels(std::uint64_t seed, const ScenarioOptions& options) {
  if (options.programs != Programs::drawn) return options.programs == Programs::channels;
  return options.ranks != 1 && Random(seed ^ 0x6368616e6e656c73ULL).below(3) == 0;
}

}  // namespace

Result<Totals> run_schedules(std::uint64_t first, std::uint64_t count, const ScenarioOptions& options,
                             const std::function<void(const Totals&)>& after_each) {
  Totals totals;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto outcome =
        uses_channels(first + i, options) ? run_channel_schedule(first + i, options) : run_schedule(first + i, options);
    if (!outcome) {
      return Error(outcome.status(), fmt::format("seed {}: the simulated world could not be opened: {}", first + i,
                                                 outcome.error().message()));
    }
    totals.add(first + i, *outcome);
    if (after_each) after_each(totals);
  }
  return totals;
}

}  // namespace railyard::sim
