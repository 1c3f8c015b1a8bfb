#include "fabric/sim/outage_faults.hpp"

#include <algorithm>
#include <vector>

namespace railyard::fabric::sim {

namespace {

constexpr std::int64_t kMicrosecond = 1'000;
constexpr std::int64_t kMillisecond = 1'000'000;

std::int64_t between(Random& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most - least + 1)));
}

/// From `least` to `least` times two to the `doublings`, short ones as often as long ones.
std::int64_t spread(Random& random, std::int64_t least, std::uint32_t doublings) {
  return between(random, least, 2 * least) << random.below(doublings);
}

/// While most schedules still have work under way: 20 us to 5 ms.
std::int64_t draw_start(Random& random) { return spread(random, 20 * kMicrosecond, 8); }
/// Shorter than any deadline to longer than most: 50 us to 50 ms.
std::int64_t draw_length(Random& random) { return spread(random, 50 * kMicrosecond, 10); }

/// The same for all kinds that one schedule mixes.
std::uint32_t spare_number(const FabricOptions& options) {
  std::vector<std::uint32_t> counts;
  for (const RailOptions& rail : options.rails) {
    const auto process = static_cast<std::size_t>(rail.process);
    if (counts.size() <= process) counts.resize(process + 1);
    ++counts[process];
  }
  return static_cast<std::uint32_t>(options.seed % std::ranges::min(counts));
}

bool is_spare(const FabricOptions& options, std::uint32_t rail) {
  return options.rails[rail].number == static_cast<int>(spare_number(options));
}

/// One for certain, so that the name never promises what does not happen, and each other one with `share`.
std::vector<std::uint32_t> draw_victims(const FabricOptions& options, Random& random, double share) {
  std::vector<std::uint32_t> victims;
  const auto certain = random.below(options.rails.size());
  for (std::uint32_t rail = 0; rail < options.rails.size(); ++rail) {
    if (rail == certain || random.chance(share)) victims.push_back(rail);
  }
  return victims;
}

RailState draw_direction(Carry carry, Random& random) {
  switch (random.below(3)) {
    case 0:
      return {carry, Carry::everything};
    case 1:
      return {Carry::everything, carry};
    default:
      return {carry, carry};
  }
}

void outage(FabricOptions& options, std::uint32_t rail, std::int64_t from, std::int64_t until, RailState state) {
  options.changes.push_back({from, rail, state});
  options.changes.push_back({until, rail, {}});
}

/// For a while, or for good where others are left.
void outage_perhaps_for_good(FabricOptions& options, Random& random, std::uint32_t rail, RailState state) {
  const std::int64_t from = draw_start(random);
  const std::int64_t until = from + draw_length(random);
  if (!is_spare(options, rail) && random.chance(0.3)) {
    options.changes.push_back({from, rail, state});
  } else {
    outage(options, rail, from, until, state);
  }
}

void draw_how_errors_are_told(FabricOptions& options, Random& random) {
  const bool knows = random.chance(0.5);
  const std::int64_t delay = spread(random, 5 * kMicrosecond, 8);
  for (RailOptions& rail : options.rails) {
    rail.knows_interface = rail.knows_interface || knows;
    rail.error_delay = delay;
  }
}

/// A socket sends again until it gets through; a queue pair gives up after a while and says so.
void draw_how_silence_ends(FabricOptions& options, Random& random) {
  const bool retransmits = random.chance(0.5);
  const std::int64_t first = spread(random, 50 * kMicrosecond, 4);
  const std::int64_t give_up = spread(random, 2 * kMillisecond, 8);
  const bool completes = random.chance(0.5);
  for (RailOptions& rail : options.rails) {
    rail.retransmits = retransmits;
    rail.retransmit = first;
    rail.give_up = give_up;
    rail.completes_unsent = retransmits || completes;
  }
}

Carry draw_failure(Random& random) { return random.chance(0.5) ? Carry::errors : Carry::nothing; }

}  // namespace

void kill_rails(FabricOptions& options, Random& random) {
  draw_how_errors_are_told(options, random);
  for (const std::uint32_t rail : draw_victims(options, random, 1.0 / 3.0)) {
    outage_perhaps_for_good(options, random, rail, {Carry::errors, Carry::errors});
  }
}

void flap(FabricOptions& options, Random& random) {
  draw_how_errors_are_told(options, random);
  draw_how_silence_ends(options, random);
  for (const std::uint32_t rail : draw_victims(options, random, 1.0 / 5.0)) {
    const Carry failure = draw_failure(random);
    std::int64_t time = draw_start(random);
    for (std::int64_t left = between(random, 3, 12); left > 0; --left) {
      const std::int64_t down = spread(random, 50 * kMicrosecond, 7);
      outage(options, rail, time, time + down, {failure, failure});
      time += down + spread(random, 50 * kMicrosecond, 7);
    }
  }
}

void black_hole(FabricOptions& options, Random& random) {
  draw_how_silence_ends(options, random);
  for (const std::uint32_t rail : draw_victims(options, random, 1.0 / 4.0)) {
    outage_perhaps_for_good(options, random, rail, draw_direction(Carry::nothing, random));
  }
}

void lost_completion(FabricOptions& options, Random& random) {
  const double probability = static_cast<double>(between(random, 1, 20)) / 1'000.0;
  for (RailOptions& rail : options.rails) {
    rail.lost_completion_probability = probability;
  }
}

void late_packets(FabricOptions& options, Random& random) {
  draw_how_silence_ends(options, random);
  const std::int64_t most = spread(random, 1 * kMillisecond, 7);
  const bool timed = random.chance(0.25);
  // Long enough for a packet to get through on the slowest rail.
  std::int64_t lifetime = spread(random, 1 * kMillisecond, 5);
  for (const RailOptions& rail : options.rails) {
    const double on_wire = static_cast<double>(rail.mtu) * 1e9 / rail.bandwidth;
    lifetime = std::max(lifetime, 4 * (rail.latency + static_cast<std::int64_t>(on_wire)));
  }
  for (RailOptions& rail : options.rails) {
    rail.hold_least = 100 * kMicrosecond;
    rail.hold_most = most;
    if (!timed) continue;
    rail.fencing = Fencing::timed;
    rail.packet_lifetime = lifetime;
  }
  for (const std::uint32_t rail : draw_victims(options, random, 1.0 / 3.0)) {
    for (std::int64_t left = between(random, 1, 3); left > 0; --left) {
      const std::int64_t from = draw_start(random);
      outage(options, rail, from, from + spread(random, 50 * kMicrosecond, 6), draw_direction(Carry::late, random));
    }
  }
}

void two_of_four(FabricOptions& options, Random& random) {
  draw_how_errors_are_told(options, random);
  draw_how_silence_ends(options, random);
  const auto count = static_cast<std::uint32_t>(options.rails.size());
  const auto first = static_cast<std::uint32_t>(random.below(count));
  // Another one of the same process, or of the same number elsewhere, whichever comes first.
  std::uint32_t second = first;
  const auto start = static_cast<std::uint32_t>(random.below(count));
  for (std::uint32_t i = 0; i < count && second == first; ++i) {
    const std::uint32_t other = (start + i) % count;
    const bool related = options.rails[other].process == options.rails[first].process ||
                         options.rails[other].number == options.rails[first].number;
    if (related) second = other;
  }
  const Carry failure = draw_failure(random);
  const std::int64_t from = draw_start(random);
  const std::int64_t until = from + draw_length(random);
  for (const std::uint32_t rail : {first, second}) outage(options, rail, from, until, {failure, failure});
}

void peer_death(FabricOptions& options, Random& random) {
  int processes = 0;
  for (const RailOptions& rail : options.rails) processes = std::max(processes, rail.process + 1);
  if (processes < 2) return;  // nobody would be left to tell
  const auto process = static_cast<int>(random.below(static_cast<std::uint64_t>(processes)));
  options.deaths.push_back({draw_start(random), process, random.chance(0.5) ? Death::told : Death::silent});
}

}  // namespace railyard::fabric::sim
