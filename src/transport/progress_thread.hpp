/// ProgressThread: moves an engine on while the program makes no call, so that its peers get their answers. It keeps
/// out of the way of callers: while they make passes it only looks now and then whether they still do, and no arrival
/// wakes it. When they have been silent for a moment it makes the passes, and sleeps in the kernel between them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/fd.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {

class ProgressThread {
 public:
  struct Options {
    std::string name = "railyard";
    /// Callers will make no pass for a while: it begins at once.
    bool at_once = false;
    /// Beside callers that make passes, it makes some too while they have much to move: for machines with cores to
    /// spare.
    bool shares_work = false;
    /// What must not wait for callers to be silent: called about once a millisecond while they are not.
    std::function<void()> meanwhile = {};
    int descriptor = -1;  ///< wakes it, like those of the rails
  };
  /// `pass` makes a pass of the engine if nobody else does, and says whether anything happened.
  ProgressThread(Engine& engine, std::function<bool()> pass, Options options);
  /// Waits for its last pass.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// How often it has left the work to callers and slept meanwhile.
  std::uint64_t naps() const { return naps_.load(std::memory_order_relaxed); }

 private:
  void run();
  bool stopped() const { return stop_.load(std::memory_order_seq_cst); }
  void nap(std::int64_t nanoseconds);
  void watch() const;
  bool help();
  void work();

  Engine& engine_;
  const std::function<bool()> pass_;
  const Options options_;
  const Fd timer_;  ///< wakes it a moment after callers have left work
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> naps_{0};
  std::mutex mutex_;
  std::condition_variable stopping_;
  std::thread thread_;
};

/// The pass of an engine that has no user with work of its own.
inline std::function<bool()> plain_pass(Engine& engine) {
  return [&engine] {
    if (!engine.progress_lock().try_take()) return false;
    const bool moved = engine.progress();
    engine.progress_lock().give();
    return moved;
  };
}

}  // namespace railyard::transport
