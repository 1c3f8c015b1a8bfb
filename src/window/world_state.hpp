/// What a World holds.
#pragma once

#include <memory>
#include <vector>

#include "railyard/world.hpp"
#include "window/world_engine.hpp"

namespace railyard {

class WorldState {
 public:
  ~WorldState();

  WorldEngine& home() const { return membership->home(); }
  transport::Engine& engine() const { return home().engine(); }
  bool is_part() const { return !members.empty(); }

  /// A rank's in the world that was opened; the same, if this is it.
  int world_rank(int rank) const { return members.empty() ? rank : members[static_cast<std::size_t>(rank)]; }
  /// The rank here of one of the world that was opened; -1: it is no member.
  int rank_of(int world_rank) const;
  /// The engine's flow to a rank.
  std::uint32_t flow_of(int rank) const { return first_flow + static_cast<std::uint32_t>(world_rank(rank)); }

  /// Runs a collective of this world's bootstrap.
  template <typename Collective>
  auto with_progress(Collective&& collective) {
    if (is_part()) return collective();  // a sub-world's ranks meet through the engine: it moves on by itself
    return home().with_progress(std::forward<Collective>(collective));
  }

  // A sub-world has ranks and a bootstrap of its own; the rest is that of the world it came from.
  std::shared_ptr<Membership> membership;
  std::uint32_t first_flow = 0;
  std::vector<int> members;  ///< a sub-world's: by rank, its rank in the world that was opened
  std::unique_ptr<Bootstrap> owned_bootstrap;
  Bootstrap* bootstrap = nullptr;  ///< null in an assembled world
  int rank = 0;
  int size = 1;
  bool shares_memory = false;  ///< windows lie where peers on this host can map them; never in an assembled world
};

namespace window_detail {
class WorldAccess {
 public:
  static WorldState& state(World& world) { return *world.state_; }
  static World make(std::shared_ptr<WorldState> state) { return World(std::move(state)); }
};
}  // namespace window_detail

}  // namespace railyard
