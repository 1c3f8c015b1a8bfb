/// A job's processes from the first to the last: their output, their ends, and the end of those that go on too long.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "bootstrap/server.hpp"
#include "launcher/child.hpp"
#include "launcher/launcher.hpp"
#include "launcher/signal_watch.hpp"
#include "launcher/tagger.hpp"
#include "railyard/result.hpp"

namespace railyard::launcher {

class Supervision {
 public:
  /// All must outlive it.
  Supervision(const LaunchOptions& options, const SignalWatch& signals, bootstrap::Server& server);
  /// What was started ends with its supervisor.
  ~Supervision();
  Supervision(const Supervision&) = delete;
  Supervision& operator=(const Supervision&) = delete;

  /// Starts every rank from `plan`, in the environment of the job. A program that cannot be executed is the job's first
  /// failure: `run` then ends at once and reports it.
  Result<void> start(ChildPlan plan, const Environment& job, const std::vector<Fd>& namespaces);
  /// Returns when the last rank has ended.
  LaunchReport run();

 private:
  enum class Stage : std::uint8_t {
    running,
    grace,   ///< a rank failed; the others may end by themselves
    asked,   ///< told to end
    forced,  ///< killed
  };
  /// One captured stream of one rank.
  struct Stream {
    Fd fd;
    LineTagger tagger;
    int destination;
  };
  struct Rank {
    pid_t pid = -1;
    bool running = false;
    std::vector<Stream> streams;
    std::int64_t drain_until = INT64_MAX;
  };

  /// In a forked child: closes what is the launcher's.
  void let_go();
  void note_not_executed(std::int32_t rank, const std::string& program, int code);
  bool any_stream_open() const;
  void wait_for_news();
  void pass_on(Stream& stream);
  static void end_stream(Stream& stream);
  void handle_signal(int signal);
  void signal_all(int signal) const;
  void reap();
  void note_end(std::int32_t rank, pid_t pid, const siginfo_t& info);
  void press_on();

  const LaunchOptions& options_;
  const SignalWatch& signals_;
  bootstrap::Server& server_;
  const SteadyClock clock_;
  std::vector<Rank> ranks_;
  int running_ = 0;
  int failed_ = 0;  ///< ended otherwise than with 0
  Stage stage_ = Stage::running;
  std::int64_t next_step_ns_ = INT64_MAX;
  int interrupted_by_ = 0;
  LaunchReport report_;
  std::array<char, 64 * 1024> buffer_;
};

}  // namespace railyard::launcher
