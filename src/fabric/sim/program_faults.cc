#include "fabric/sim/program_faults.hpp"

#include <algorithm>

#include "fabric/sim/outage_faults.hpp"

namespace railyard::fabric::sim {

namespace {

constexpr std::int64_t kHundredMicroseconds = 100'000;

std::int64_t pick(Random& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most - least + 1)));
}

/// From `least` to `least` times two to the `doublings`, short ones as often as long ones.
std::int64_t pick_scale(Random& random, std::int64_t least, std::uint32_t doublings) {
  return pick(random, least, 2 * least) << random.below(doublings);
}

/// Links must end for some kinds to mean anything.
void end_some_links(FabricOptions& options, Random& random) {
  switch (random.below(3)) {
    case 0:
      return kill_rails(options, random);
    case 1:
      return flap(options, random);
    default:
      return black_hole(options, random);
  }
}

/// What a NIC does with an access that the target refuses: a socket's link stays, a queue pair's does not.
void draw_how_refusals_end(FabricOptions& options, Random& random) {
  const bool breaks = random.chance(0.5);
  for (RailOptions& rail : options.rails) {
    rail.writes_confirmed = true;
    rail.refusal_breaks_link = breaks;
  }
}

}  // namespace

void late_success(FabricOptions& options, Random& random) {
  const double probability = static_cast<double>(pick(random, 20, 100)) / 100.0;
  const std::int64_t most = pick_scale(random, 10'000, 14);
  for (RailOptions& rail : options.rails) {
    rail.late_success_probability = probability;
    rail.late_success_delay = most;
  }
  end_some_links(options, random);
}

void partial_writes(FabricOptions& options, Random& random) {
  const double probability = static_cast<double>(pick(random, 20, 100)) / 100.0;
  for (RailOptions& rail : options.rails) rail.partial_probability = probability;
  end_some_links(options, random);
}

void pauses(FabricOptions& options, Random& random) {
  int processes = 1;
  for (const RailOptions& rail : options.rails) processes = std::max(processes, rail.process + 1);
  const bool known = random.chance(0.8);
  // Where fences are timed, nobody can shut out a process that only sleeps: it must not be given up.
  const bool timed =
      std::ranges::any_of(options.rails, [](const RailOptions& rail) { return rail.fencing == Fencing::timed; });
  for (RailOptions& rail : options.rails) rail.knows_liveness = known;
  for (std::int64_t left = pick(random, 1, 3); left > 0; --left) {
    const auto process = static_cast<int>(random.below(static_cast<std::uint64_t>(processes)));
    const std::int64_t from = pick_scale(random, 20'000, 8);
    // Up to some 13 s, or 0.8 s; a peer's patience is 3 s.
    options.pauses.push_back({from, process, pick_scale(random, kHundredMicroseconds, timed ? 13 : 17)});
  }
}

void deregister(FabricOptions& options, Random& random) {
  options.programs.deregisters = true;
  draw_how_refusals_end(options, random);
}

void refusals(FabricOptions& options, Random& random) {
  options.programs.refusals = true;
  draw_how_refusals_end(options, random);
}

void aborts(FabricOptions& options, Random& random) {
  options.programs.aborts = true;
  draw_how_refusals_end(options, random);
}

void unauthenticated(FabricOptions& options, Random& random) {
  for (std::int64_t left = pick(random, 10, 60); left > 0; --left) {
    Intrusion intrusion;
    intrusion.time = pick_scale(random, 20'000, 8);
    intrusion.rail = static_cast<std::uint32_t>(random.below(options.rails.size()));
    intrusion.kind = static_cast<Intrusion::Kind>(random.below(4));
    options.intrusions.push_back(intrusion);
  }
}

}  // namespace railyard::fabric::sim
