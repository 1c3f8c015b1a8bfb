/// The stage of one schedule: the network, a world and a window for each rank, and the model that knows what every rank
/// has done to every other. One thread plays all the ranks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/sim/fabric.hpp"
#include "railyard/window.hpp"
#include "railyard/world.hpp"
#include "sim/brief_windows.hpp"
#include "sim/flow_model.hpp"
#include "sim/layout.hpp"
#include "sim/plan.hpp"
#include "sim/signal_model.hpp"
#include "sim/word_model.hpp"

namespace railyard::sim {

/// All that one source does to one target.
struct Pair {
  Pair(int source, int target, const Layout& layout, std::span<std::byte> memory, Findings& findings);
  FlowModel flow;
  SignalModel adds;
  SignalModel sets;
  SignalModel shared;
  std::array<OwnWord, Layout::kOwnWords> words;
  std::uint64_t fetched_adds = 0;
  std::uint64_t compare_seen = 0;  ///< what the source knows of the compare word
  bool given_up = false;           ///< the source was told that the target is lost
  /// The target was told that the source is lost, though it lives: its memory is its own again. What it held then:
  struct Cut {
    std::uint64_t adds = 0;
    std::uint64_t sets = 0;
    std::uint64_t shared = 0;
    std::array<std::uint64_t, Layout::kOwnWords> words{};
  };
  std::optional<Cut> cut;
  /// Everything that the source has begun must have arrived.
  bool whole() const { return !given_up && !cut; }
};

/// What every rank does to one target's common words.
struct Target {
  explicit Target(int rank, std::size_t ranks) : words(rank, ranks), sums(ranks) {}
  SharedWords words;
  SumModel sums;  ///< of the sum signal
  std::uint64_t sum_seen = 0;
};

/// A world on simulated rails: every rank, opened and known to every other, with one window.
class Cluster {
 public:
  /// `worlds`: that may be on each rank's engine.
  static Result<std::unique_ptr<Cluster>> open(const Plan& plan, std::size_t window_bytes, const WindowOptions& options,
                                               int worlds = 1);
  /// One more world of the same ranks, on the same engines.
  Result<void> open_second(std::size_t window_bytes, const WindowOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Takes down windows, then worlds; the fabric stays to be asked what it saw.
  void close();

  fabric::sim::SimFabric fabric;
  std::vector<World> worlds;
  std::vector<Window> windows;
  std::vector<World> second_worlds;
  std::vector<Window> second_windows;

 private:
  explicit Cluster(const Plan& plan) : fabric(plan.fabric) {}
};

class Stage {
 public:
  static Result<std::unique_ptr<Stage>> open(Plan plan);
  /// The second world of its ranks: what happens there, too.
  Result<std::unique_ptr<Stage>> open_second();

  Pair& pair(int source, int target);
  Pair* existing_pair(int source, int target) const {
    return pairs_[static_cast<std::size_t>(source) * plan.ranks + static_cast<std::size_t>(target)].get();
  }
  Window& window(int rank) {
    return (second_ ? cluster->second_windows : cluster->windows)[static_cast<std::size_t>(rank)];
  }
  World& world(int rank) {
    return (second_ ? cluster->second_worlds : cluster->worlds)[static_cast<std::size_t>(rank)];
  }
  fabric::sim::SimFabric& fabric() { return cluster->fabric; }
  /// Whether `observer` may be told that `target` is lost: it is dead, or one of them was stopped for long and nothing
  /// told that it lives.
  bool may_be_lost(int observer, int target);
  /// Something happened: the run is not stuck.
  void note_change() { last_change = fabric().now(); }

  Plan plan;
  Layout layout;
  Random random;
  Findings findings;
  std::shared_ptr<Cluster> cluster;
  std::vector<Target> targets;
  std::unique_ptr<BriefWindows> brief;  ///< null: no kind of fault needs them
  std::uint64_t operations = 0;
  std::int64_t last_change = 0;

 private:
  explicit Stage(Plan given);
  WindowOptions window_options() const;
  void fill_constants();

  bool second_ = false;
  std::vector<std::unique_ptr<Pair>> pairs_;
};

}  // namespace railyard::sim
