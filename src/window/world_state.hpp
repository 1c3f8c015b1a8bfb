/// What a World holds.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "fabric/device_copies.hpp"
#include "railyard/world.hpp"
#include "transport/directory.hpp"
#include "transport/engine.hpp"
#include "transport/progress_thread.hpp"
#include "window/window_use.hpp"

namespace railyard {

class WorldState : public std::enable_shared_from_this<WorldState> {
 public:
  ~WorldState();

  // A sub-world has ranks and a bootstrap of its own; the rest is that of the world it came from.
  WorldState& base() { return opened ? *opened : *this; }
  /// What the engine calls a rank.
  int peer(int rank) const { return members.empty() ? rank : members[static_cast<std::size_t>(rank)]; }
  /// The rank of what the engine calls so; -1: it is no member.
  int rank_of(int peer) const;

  /// Runs a collective of the bootstrap while the engine moves on: a peer may need our acknowledgements before it can
  /// reach the same call.
  template <typename Collective>
  auto with_progress(Collective&& collective) {
    if (opened) return collective();  // a sub-world's ranks meet through the engine: it moves on by itself
    const transport::ProgressThread mover(*engine, transport::plain_pass(*engine), {.at_once = true});
    return collective();
  }
  /// As the settings and the rails want it.
  void start_progress_thread();
  void begin_publishing(const Settings& settings);
  void begin_tracing(const Settings& settings);

  // For event loops.
  Result<int> descriptor();
  bool arm();
  void progress();
  /// Whoever changes signals of a window without the engine wakes an event loop that is armed. Progress lock held.
  void add_sleepers(transport::Sleepers* of_window);
  void remove_sleepers(transport::Sleepers* of_window);

  /// What the windows of this world and of its sub-worlds do.
  void add_window(WindowUse& window);
  /// With the progress lock held. What it did past the engine stays in the world's statistics.
  void remove_window(WindowUse& window);
  /// With the progress lock held.
  void add_direct_use(WorldStatistics& statistics) const;

  std::shared_ptr<WorldState> opened;  ///< a sub-world's: the world that was opened
  std::vector<int> members;            ///< a sub-world's: by rank, the engine's name for it
  std::unique_ptr<Bootstrap> owned_bootstrap;
  Bootstrap* bootstrap = nullptr;  ///< null in an assembled world
  std::unique_ptr<SteadyClock> owned_clock;
  Directory directory;
  int rank = 0;
  int size = 1;
  std::shared_ptr<transport::Engine> engine;
  bool shares_memory = false;  ///< windows lie where peers on this host can map them; never in an assembled world
  /// Copies of this process to itself, where memory of a GPU takes part.
  std::mutex copies_mutex;
  fabric::DeviceCopies copies{1};
  /// Now, for memory that is registered: `DeviceCopies::prepare` says why. Nothing for host memory.
  Result<void> prepare_copies(std::span<const std::byte> memory);

 private:
  void disarm();
  void publish_windows();

  // With the progress lock held, but for the opening.
  Fd readable_;  ///< an epoll set of the rails, the engine's bell and the alarm
  Fd alarm_;
  bool armed_ = false;
  std::vector<transport::Sleepers*> sleepers_;  ///< of every window; an armed event loop is one in each
  std::vector<WindowUse*> windows_;
  std::uint64_t windows_made_ = 0;
  WorldStatistics closed_windows_;  ///< what they did past the engine
  bool refused_ = false;            ///< the last `arm` asked for a pass first
  std::unique_ptr<transport::ProgressThread> progress_thread_;
};

namespace window_detail {
class WorldAccess {
 public:
  static WorldState& state(World& world) { return *world.state_; }
  static World make(std::shared_ptr<WorldState> state) { return World(std::move(state)); }
};
}  // namespace window_detail

}  // namespace railyard
