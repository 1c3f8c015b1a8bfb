/// Many schedules, one seed after the other, and the sum of what they found.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/schedule.hpp"

namespace railyard::sim {

struct Totals {
  static constexpr std::size_t kMostSeeds = 15;

  std::uint64_t schedules = 0;
  std::uint64_t operations = 0;
  std::uint64_t lost = 0;
  std::uint64_t doubled = 0;
  std::uint64_t early = 0;
  std::uint64_t ghosts = 0;
  std::uint64_t corrupt = 0;
  std::uint64_t violations = 0;
  std::uint64_t failed_schedules = 0;
  std::uint64_t packets = 0;
  std::uint64_t held_out_of_order = 0;
  std::uint64_t busy = 0;
  std::uint64_t links_lost = 0;
  std::uint64_t replayed = 0;
  std::uint64_t packets_fenced = 0;
  std::uint64_t deaths = 0;
  double virtual_seconds = 0;
  std::optional<std::uint64_t> first_failing_seed;
  std::vector<std::string> first_notes;   ///< what that seed found
  std::vector<std::uint64_t> more_seeds;  ///< that found something too; the first few

  bool clean() const { return failed_schedules == 0; }
  void add(std::uint64_t seed, const Outcome& outcome);
};

/// Runs the seeds `first` to `first + count - 1`. `after_each` is called with the sum so far.
Result<Totals> run_schedules(std::uint64_t first, std::uint64_t count, const ScenarioOptions& options,
                             const std::function<void(const Totals&)>& after_each = {});

}  // namespace railyard::sim
