/// What a World holds.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/clock.hpp"
#include "railyard/world.hpp"
#include "transport/directory.hpp"
#include "transport/engine.hpp"
#include "window/direct_use.hpp"

namespace railyard {

class WorldState {
 public:
  ~WorldState();

  /// Runs a collective of the bootstrap while the engine moves on: a peer may need our acknowledgements before it can
  /// reach the same call.
  template <typename Collective>
  auto with_progress(Collective&& collective) {
    std::atomic<bool> over{false};
    std::thread mover([this, &over] { move_until(over); });
    auto result = collective();
    // Release: nothing to publish but the flag; `join` orders the rest.
    over.store(true, std::memory_order_relaxed);
    mover.join();
    return result;
  }
  void start_progress_thread();

  std::unique_ptr<Bootstrap> owned_bootstrap;
  Bootstrap* bootstrap = nullptr;  ///< null in an assembled world
  std::unique_ptr<SteadyClock> owned_clock;
  Directory directory;
  int rank = 0;
  int size = 1;
  std::unique_ptr<transport::Engine> engine;
  bool shares_memory = false;  ///< windows lie where peers on this host can map them; never in an assembled world
  DirectUse direct_use;

 private:
  void move_until(const std::atomic<bool>& over);
  std::atomic<bool> stop_{false};
  std::thread mover_;
};

namespace window_detail {
class WorldAccess {
 public:
  static WorldState& state(World& world) { return *world.state_; }
  static World make(std::unique_ptr<WorldState> state) { return World(std::move(state)); }
};
}  // namespace window_detail

}  // namespace railyard
