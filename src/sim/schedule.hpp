/// One schedule: a world from a seed, a random program on every rank, and everything it did checked. The same seed and
/// options give the same run, to the last event.
#pragma once

#include <cstdint>

#include "sim/findings.hpp"
#include "sim/plan.hpp"

namespace railyard::sim {

struct Outcome {
  std::uint64_t operations = 0;
  Findings findings;
  std::uint64_t digest = 0;       ///< of every event of the run
  std::int64_t virtual_time = 0;  ///< nanoseconds
  std::uint64_t packets = 0;
  std::uint64_t held_out_of_order = 0;  ///< messages that arrived before their turn
  std::uint64_t busy = 0;               ///< posts that the rails refused for the moment
  std::uint64_t links_lost = 0;         ///< given up by an engine
  std::uint64_t replayed = 0;           ///< segments that went out again
  std::uint64_t packets_fenced = 0;     ///< that a fence kept from landing
  bool death = false;                   ///< a process died
};

/// An error: the world could not be opened.
Result<Outcome> run_schedule(std::uint64_t seed, const ScenarioOptions& options);

}  // namespace railyard::sim
