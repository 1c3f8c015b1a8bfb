/// What one schedule is: how many ranks and rails, what the network is like, how the library is set, how the program
/// behaves. Drawn from the seed alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "fabric/sim/faults.hpp"
#include "fabric/sim/options.hpp"
#include "railyard/settings.hpp"

namespace railyard::sim {

/// What the processes of a schedule use.
enum class Programs : std::uint8_t { drawn, windows, channels };

/// What the caller fixes; the rest is drawn.
struct ScenarioOptions {
  Programs programs = Programs::drawn;                ///< drawn: windows in two schedules of three
  std::uint32_t ranks = 0;                            ///< 0: 2 to 6
  std::uint32_t rails = 0;                            ///< per rank; 0: 1 to 4, not the same everywhere
  std::uint32_t operations = 0;                       ///< of all ranks together; 0: drawn
  bool any_faults = true;                             ///< each schedule draws which of the known kinds it has
  std::vector<const fabric::sim::FaultKind*> faults;  ///< otherwise: these
  bool fence = true;                                  ///< false: fences shut nothing out, to see what they are for
};

/// How the program that runs on the world behaves.
struct Behaviour {
  std::uint32_t operations = 0;
  std::uint32_t most_burst = 4;         ///< operations that a rank submits in one go
  std::uint32_t most_outstanding = 32;  ///< of one rank
  std::uint32_t issue_percent = 50;     ///< of its turns in which a rank submits
  std::uint32_t progress_percent = 80;  ///< of its turns in which a rank makes progress
  std::uint32_t sleep_percent = 0;      ///< of its turns after which a rank does nothing for a while
  std::uint32_t hot_percent = 0;        ///< of operations that go to rank 0
  std::uint32_t self_percent = 5;       ///< of operations that go to the rank itself
  std::int64_t sleep = 100'000;         ///< most that a rank sleeps
  std::int64_t turn = 500;              ///< most virtual time between two rounds while something is going on
  bool large = false;                   ///< operations up to 256 KiB
  /// Relative weights of the kinds of operation, by `Kind`.
  std::vector<std::uint32_t> weights;
};

struct Plan {
  std::uint64_t seed = 0;
  std::uint32_t ranks = 0;
  std::vector<std::uint32_t> rails;  ///< by rank
  fabric::sim::FabricOptions fabric;
  Settings settings;
  Behaviour behaviour;
  bool two_worlds = false;  ///< of the same ranks, on the same engines
  std::string kinds;        ///< of fault, for people
};

/// The kinds of operation a program mixes.
enum class Kind : std::uint8_t {
  put_signal,
  signal,
  put,        ///< a signal comes later
  relaxed,    ///< relaxed puts, a fence, then a signal
  overwrite,  ///< a put, a fence, another put to the same place
  put_value,
  put_counter,
  put_signal_counter,
  get,         ///< of memory that never changes
  put_get,     ///< a put, a fence, a get of what was put
  atomic_own,  ///< on a word that only this rank changes: every result is known
  atomic_add,  ///< on a word that all ranks change
  atomic_swap,
  atomic_compare_swap,
  put_vector,  ///< several puts as one operation, with or without a signal
  get_vector,
};
inline constexpr std::size_t kKinds = 16;
const char* to_string(Kind kind);

Plan make_plan(std::uint64_t seed, const ScenarioOptions& options);

/// A world of equal rails in which nothing goes wrong, to be changed as needed.
Plan orderly_plan(std::uint32_t ranks, std::uint32_t rails);

}  // namespace railyard::sim
