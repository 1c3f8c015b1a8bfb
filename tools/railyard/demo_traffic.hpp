/// The traffic of `railyard demo`: four phases, each checked on the spot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "histogram.hpp"
#include "railyard/bootstrap.hpp"
#include "railyard/window.hpp"
#include "railyard/world.hpp"

namespace railyard::tool {

/// One line of the demo's table, of one rank or of all together.
struct DemoPhase {
  std::string name;
  std::uint64_t operations = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;  ///< of the traffic alone, without the checking
  Histogram latency;
};

struct DemoRail {
  std::string name;
  std::uint64_t bytes = 0;       ///< sent in all phases
  std::uint64_t bulk_bytes = 0;  ///< sent in the all-to-all
};

/// What one rank did and found.
struct DemoResult {
  std::string provider;
  std::vector<DemoPhase> phases;
  std::vector<DemoRail> rails;
  double bulk_seconds = 0;
  std::uint64_t bytes_checked = 0;
  std::uint64_t signals_checked = 0;
  std::uint64_t atomics_checked = 0;
  std::string failure;  ///< the first thing that was wrong; empty if nothing was
};

class DemoTraffic {
 public:
  /// Makes the window. Collective. Each phase lasts about `seconds`.
  static Result<DemoTraffic> open(World& world, Bootstrap& bootstrap, double seconds);

  /// Runs every phase. Collective. What was wrong with the data is in the result; an error means that the run itself
  /// could not go on.
  Result<DemoResult> run();
  Result<void> close() { return window_.close(); }

 private:
  DemoTraffic(World& world, Bootstrap& bootstrap, Window window, double seconds);

  Result<void> warm_up();
  Result<void> put_signals();
  Result<void> put_signal_step(std::size_t size_class, std::uint64_t step);
  Result<void> gets();
  Result<void> get_step();
  Result<void> atomics();
  Result<void> check_sums(std::span<const std::uint64_t> fetched_sums, std::uint64_t operations);
  Result<void> all_to_all();
  Result<void> all_to_all_step(std::uint64_t step);

  /// Meets the other ranks, and asks whether any of them has had enough of the phase that began at `began`.
  Result<bool> enough(std::int64_t began);
  void note_failure(std::string what);
  std::size_t inbox(int source) const;
  std::byte* outbox(int target);
  void expect_pattern(const char* phase, int source, std::span<const std::byte> memory, std::uint64_t seed,
                      std::uint64_t word);

  World* world_;
  Bootstrap* bootstrap_;
  Window window_;
  int rank_;
  int size_;
  std::int64_t phase_ns_;
  Random random_;
  std::vector<std::byte> buffer_;
  std::vector<std::uint64_t> sent_;      ///< put+signals so far, by target
  std::vector<std::uint64_t> expected_;  ///< put+signals that should have come, by source
  DemoResult result_;
};

}  // namespace railyard::tool
