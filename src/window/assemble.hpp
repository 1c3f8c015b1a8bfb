/// Opening in two steps, for a caller that runs several ranks in one thread (the simulator): each rank begins, the
/// caller passes the contributions round, each rank finishes. World::open and Window::allocate do the same over a
/// bootstrap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/identity.hpp"
#include "fabric/rail.hpp"
#include "railyard/window.hpp"
#include "railyard/world.hpp"

namespace railyard {

class Membership;

struct WorldParts {
  Settings settings;
  Clock* clock = nullptr;
  std::vector<std::unique_ptr<fabric::Rail>> rails;
  int rank = 0;
  int size = 1;
  Identity identity;
  std::uint64_t seed = 0;
  int worlds = 1;  ///< that may join the engine, all of that size
};

class WorldAssembly {
 public:
  static Result<WorldAssembly> begin(WorldParts parts);
  /// One more of the same process and size, on the engine of one that is there. `instance`: tells worlds of the same
  /// processes apart, and is not 0.
  static Result<WorldAssembly> begin_beside(World& world, std::uint64_t instance);
  WorldAssembly(WorldAssembly&&) noexcept;
  WorldAssembly& operator=(WorldAssembly&&) noexcept;
  ~WorldAssembly();

  std::vector<std::byte> contribution() const;
  Result<World> finish(std::span<const std::vector<std::byte>> all);

 private:
  WorldAssembly(std::unique_ptr<Membership> membership, int rank, int size, std::uint64_t instance);
  std::unique_ptr<Membership> membership_;
  int rank_;
  int size_;
  std::uint64_t instance_;
};

/// A world over rails of its own, whose ranks meet by `bootstrap`, which must outlive it. Collective.
Result<World> open_world(const Settings& settings, Bootstrap& bootstrap);
/// The same over those of a context.
Result<World> open_world(Context& context, Bootstrap& bootstrap);

class WindowAssembly {
 public:
  /// Over memory of its own. Local; an error is meant to be passed round too: see `contribution`.
  static WindowAssembly begin(World& world, std::size_t bytes, const WindowOptions& options);
  static WindowAssembly begin(World& world, std::span<std::byte> memory, const WindowOptions& options);
  WindowAssembly(WindowAssembly&&) noexcept;
  WindowAssembly& operator=(WindowAssembly&&) noexcept;
  ~WindowAssembly();

  /// What this rank offers, or why it cannot: then `finish` fails on every rank, and none waits for a rank that gave
  /// up.
  std::vector<std::byte> contribution() const;
  Result<Window> finish(std::span<const std::vector<std::byte>> all);

 private:
  WindowAssembly();
  Error error_;
  std::unique_ptr<window_detail::WindowState> state_;
};

}  // namespace railyard
