/// WorldEngine: an engine that worlds join, and what a process keeps around it: who makes progress, what event loops
/// sleep on, what all windows together did. A context has one for all its worlds.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/identity.hpp"
#include "fabric/device_copies.hpp"
#include "railyard/world.hpp"
#include "transport/directory.hpp"
#include "transport/engine.hpp"
#include "transport/progress_thread.hpp"
#include "window/window_use.hpp"

namespace railyard {

class ContextState;

class WorldEngine : public std::enable_shared_from_this<WorldEngine> {
 public:
  /// Over rails of its own, as the settings say.
  static Result<std::shared_ptr<WorldEngine>> open(const Settings& settings, const Identity& identity);
  /// A context's: opened when its first world comes.
  static Result<std::shared_ptr<WorldEngine>> of(ContextState& context);
  explicit WorldEngine(std::unique_ptr<transport::Engine> engine);
  WorldEngine(const WorldEngine&) = delete;
  WorldEngine& operator=(const WorldEngine&) = delete;
  ~WorldEngine();

  transport::Engine& engine() { return *engine_; }
  /// No more than one world has joined: what the engine counts is that world's. Any thread.
  bool alone() const { return worlds_.load(std::memory_order_relaxed) <= 1; }

  /// Runs a collective of a bootstrap while the engine moves on: a peer may need our acknowledgements before it can
  /// reach the same call.
  template <typename Collective>
  auto with_progress(Collective&& collective) {
    const transport::ProgressThread mover(*engine_, transport::plain_pass(*engine_), {.at_once = true});
    return collective();
  }
  /// The first world has joined, as this rank of so many: what the settings ask for begins. Others find it done.
  void begin(int rank, int size);
  bool begun();

  // For event loops.
  Result<int> descriptor();
  bool arm();
  void progress();
  /// Whoever changes signals of a window without the engine wakes an event loop that is armed. Progress lock held.
  void add_sleepers(transport::Sleepers* of_window);
  void remove_sleepers(transport::Sleepers* of_window);

  /// What the windows of all worlds do.
  void add_window(WindowUse& window);
  /// With the progress lock held. What it did past the engine stays in the statistics.
  void remove_window(WindowUse& window);
  WorldStatistics statistics();

  /// Copies of this process to itself, where memory of a GPU takes part.
  std::mutex copies_mutex;
  fabric::DeviceCopies copies{1};
  /// Now, for memory that is registered: `DeviceCopies::prepare` says why. Nothing for host memory.
  Result<void> prepare_copies(std::span<const std::byte> memory);

 private:
  void begin_publishing(int rank, int size);
  void begin_tracing(int rank, int size);
  void start_progress_thread();
  void disarm();
  void publish_windows();
  void add_direct_use(WorldStatistics& statistics) const;

  friend class Membership;
  std::atomic<int> worlds_{0};          ///< that have joined
  std::unique_ptr<SteadyClock> clock_;  ///< null where the engine has somebody else's
  std::unique_ptr<transport::Engine> engine_;
  std::mutex beginning_;
  bool begun_ = false;

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

/// A world's place in an engine: from its opening until the last of it and its sub-worlds has ended.
class Membership {
 public:
  /// Ids for the flows to so many ranks.
  static Result<std::unique_ptr<Membership>> open(const std::shared_ptr<WorldEngine>& home, int rank, int size);
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  ~Membership();

  /// What this rank tells the others. `instance`: the world's, if this is rank 0.
  std::vector<std::byte> contribution(std::uint64_t instance) const;
  /// Nothing comes for a rank before it has joined: what there is to talk about, a window, is made afterwards, by all
  /// ranks together or by the one that it is of.
  Result<void> join(std::span<const std::vector<std::byte>> contributions);

  WorldEngine& home() { return *home_; }
  const transport::Ranks& ranks() const { return *ranks_; }
  /// Who a rank is; and which rank that is, -1: none.
  Identity identity_of(int rank) const;
  int rank_of(const Identity& identity) const;
  const Directory& directory() const { return *directory_; }

 private:
  Membership(std::shared_ptr<WorldEngine> home, int rank, int size, std::uint16_t first_flow)
      : home_(std::move(home)), rank_(rank), size_(size), first_flow_(first_flow) {}

  std::shared_ptr<WorldEngine> home_;
  int rank_;
  int size_;
  std::uint16_t first_flow_;
  std::shared_ptr<const Directory> directory_;
  const transport::Ranks* ranks_ = nullptr;  ///< null: not joined
};

}  // namespace railyard
