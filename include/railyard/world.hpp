/// World: the ranks of one job, the rails of this process and the engine that moves data over them.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "railyard/bootstrap.hpp"
#include "railyard/deadline.hpp"
#include "railyard/result.hpp"
#include "railyard/settings.hpp"
#include "railyard/statistics.hpp"

namespace railyard {

class Context;

struct WorldOptions {
  /// Whose rails, engine and settings the world uses, with any number of others (context.hpp); by default it has its
  /// own. May be closed before the world.
  Context* context = nullptr;
  /// Where settings come from, without a context; by default the environment.
  const Settings* settings = nullptr;
  /// An existing way for the ranks to meet; by default the launcher, TCP rendezvous or PMIx found in the environment,
  /// and a world of one rank where there is none. Must outlive the world.
  Bootstrap* bootstrap = nullptr;
};

namespace window_detail {
class WorldAccess;
}
class WorldState;

/// Movable handle. All windows of a world must be closed before it.
///
/// A sub-world is a World like any other: it has ranks, windows, barriers and sub-worlds of its own, and its errors
/// name its own ranks (their text the world's too). It shares the rails, the engine and the statistics of the world
/// that was opened; these live until the last of them ends. So do the worlds of one context. Its ranks are fixed, as
/// those of every world: a rank that is lost stays lost, and none joins later (see channel.hpp for peers that come and
/// go).
class World {
 public:
  static Result<World> open(const WorldOptions& options = {});
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  int rank() const noexcept;
  int size() const noexcept;
  std::size_t rail_count() const noexcept;
  const Settings& settings() const noexcept;

  /// Moves things on: polls every rail once, applies what arrived, sends what waits. Bounded work; any thread may call
  /// it. Waits call it by themselves, and while a rank makes no call a thread does (RAILYARD_PROGRESS).
  void progress();
  /// For event loops: a descriptor that becomes readable when `progress` may have something to do. It is the same every
  /// time, and one for all worlds of a context. Before each time that a loop sleeps on it, it arms it; `progress` takes
  /// that away again:
  ///
  ///     do world.progress(); while (!world.arm());
  ///     poll(descriptor, ...);
  Result<int> descriptor();
  /// True: nothing is to be done now, and whatever happens from now on makes the descriptor readable: look once more at
  /// what is waited for before sleeping (`Window::read_signal`, `peek`). False: call `progress` first (or there is no
  /// descriptor yet).
  bool arm();

  /// Registers memory on every rail ahead of time, so that the first put or get from it does not pay for it.
  /// Optional: memory is registered on first use otherwise, and where rails pin pages (verbs) with every use. Ends with
  /// `forget`.
  Result<void> remember(std::span<const std::byte> memory);
  /// Drops cached registrations that overlap `memory`. Call before unmapping memory that puts or gets used. Operations
  /// on it that are still outstanding fail; when this returns, nothing reads or writes the memory on their behalf.
  void forget(std::span<const std::byte> memory);

  /// Returns once every rank has entered (through the bootstrap: for set-up, not for inner loops; see Window::barrier).
  Result<void> barrier(Deadline deadline = {});

  /// Makes a world of those ranks that give the same `color`, in the order of `key` and, among equals, of their rank
  /// here. A negative color: no world for this rank. Collective over all ranks of this world; ending a sub-world is
  /// not.
  Result<std::optional<World>> split(int color, int key = 0);
  /// The rank that a rank of this world has in the one that was opened; -1: there is none. The same, where this is it.
  int world_rank(int rank) const noexcept;
  /// The rank of the same process in another world; -1: it is not in that one, or the two have nothing in common.
  int translate(int rank, const World& other) const noexcept;

  WorldStatistics statistics() const;

 private:
  friend class window_detail::WorldAccess;
  explicit World(std::shared_ptr<WorldState> state);
  std::shared_ptr<WorldState> state_;
};

}  // namespace railyard
