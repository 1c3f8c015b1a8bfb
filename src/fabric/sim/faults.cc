#include "fabric/sim/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "fabric/sim/outage_faults.hpp"
#include "fabric/sim/program_faults.hpp"

namespace railyard::fabric::sim {

namespace {

constexpr std::int64_t kMicrosecond = 1'000;

std::int64_t between(Random& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most - least + 1)));
}

double share(Random& random, std::int64_t least_percent, std::int64_t most_percent) {
  return static_cast<double>(between(random, least_percent, most_percent)) / 100.0;
}

void reorder(FabricOptions& options, Random& random) {
  const double probability = share(random, 5, 60);
  const std::int64_t most = between(random, 5, 60) * kMicrosecond;
  for (RailOptions& rail : options.rails) {
    rail.reorder_probability = probability;
    rail.reorder_delay = most;
    rail.interleave = 1 + random.below(4);
  }
}

void delay(FabricOptions& options, Random& random) {
  const double probability = share(random, 1, 5);
  const std::int64_t most = between(random, 50, 1'000) * kMicrosecond;
  for (RailOptions& rail : options.rails) {
    rail.delay_probability = probability;
    rail.delay = most;
    rail.jitter += between(random, 0, 5) * kMicrosecond;
  }
}

void slow_rail(FabricOptions& options, Random& random) {
  if (options.rails.empty()) return;
  // One for certain, so that the name never promises what does not happen; each other one with a third of a chance.
  const std::size_t certain = random.below(options.rails.size());
  for (std::size_t i = 0; i < options.rails.size(); ++i) {
    RailOptions& rail = options.rails[i];
    if (i != certain && !random.chance(1.0 / 3.0)) continue;
    rail.bandwidth /= static_cast<double>(between(random, 5, 50));
    rail.latency *= between(random, 2, 10);
  }
}

void busy(FabricOptions& options, Random& random) {
  const double probability = share(random, 5, 50);
  const bool shallow = random.chance(0.5);
  for (RailOptions& rail : options.rails) {
    rail.busy_probability = probability;
    if (shallow) rail.depth = static_cast<std::size_t>(between(random, 2, 16));
  }
}

void late_completion(FabricOptions& options, Random& random) {
  const double probability = share(random, 2, 30);
  const std::int64_t most = between(random, 20, 500) * kMicrosecond;
  for (RailOptions& rail : options.rails) {
    rail.late_probability = probability;
    rail.late_delay = most;
  }
}

constexpr FaultKind kKinds[] = {
    {"reorder", "packets overtake each other, also on one rail and lane", reorder, 0.5},
    {"delay", "some packets are very late", delay, 0.5},
    {"slow-rail", "some rails are many times slower than others", slow_rail, 0.5},
    {"busy", "posts are answered busy at random, and queues are short", busy, 0.5},
    {"late-completion", "local completions come long after the fact", late_completion, 0.5},
    {"kill", "rails fail with errors, for a while or for good", kill_rails, 0.25},
    {"flap", "rails fail and come back again and again", flap, 0.15},
    {"black-hole", "rails swallow packets without a word, in one direction or both", black_hole, 0.25},
    {"lost-completion", "operations take effect, but their completion never comes", lost_completion, 0.15},
    {"late-packets", "packets are held back and land long after their link was given up", late_packets, 0.25},
    {"two-of-four", "two rails that belong together fail at the same instant", two_of_four, 0.2},
    {"peer-death", "a process dies, with a word or in silence", peer_death, 0.15},
    {"late-success", "operations of a link that was given up are told as done, also long after its fence", late_success,
     0.25},
    {"partial-writes", "writes that fail have landed in part, and chunks of them land until the fence", partial_writes,
     0.25},
    {"pauses", "processes stop and go on later, perhaps after their peers' patience has ended", pauses, 0.15},
    {"deregister", "memory is taken back and used for something else while peers write to it", deregister, 0.2},
    {"refusals", "operations that their targets must refuse: no such window, range, alignment or code", refusals, 0.15},
    {"aborts", "channels whose memory is taken back and used again with requests posted, closed only later", aborts,
     0.2},
    {"unauthenticated", "messages, immediates and connections from nobody", unauthenticated, 0.2},
};

}  // namespace

std::span<const FaultKind> fault_kinds() { return kKinds; }

Result<std::vector<const FaultKind*>> parse_faults(std::string_view names) {
  std::vector<const FaultKind*> kinds;
  if (names == "none") return kinds;
  for (;;) {
    const std::size_t comma = names.find(',');
    const std::string_view name = names.substr(0, comma);
    const auto* found = std::ranges::find(kKinds, name, &FaultKind::name);
    if (found == std::end(kKinds)) {
      std::string known = "none";
      for (const FaultKind& kind : kKinds) known += fmt::format(", {}", kind.name);
      return Error(Status::not_found, fmt::format("no fault kind '{}'; known: {}", name, known));
    }
    if (std::ranges::find(kinds, found) == kinds.end()) kinds.push_back(found);
    if (comma == std::string_view::npos) return kinds;
    names.remove_prefix(comma + 1);
  }
}

}  // namespace railyard::fabric::sim
