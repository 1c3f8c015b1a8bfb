/// Starts the ranks of a job on this machine, brings them together and looks after them until the last has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launcher/child.hpp"
#include "railyard/result.hpp"

namespace railyard::launcher {

struct LaunchOptions {
  std::int32_t ranks = 1;
  bool tag_output = false;  ///< "[3] " in front of every line of rank 3
  Environment environment;  ///< more variables for every rank
  std::int64_t grace_ns =
      5'000'000'000;        ///< from the first failure to the end of the others, and from asking to forcing
  bool keep_going = false;  ///< a rank that fails ends no other
  /// Comma list of network namespaces (names as `ip netns` shows them): rank r lives in number r modulo their count.
  /// Empty: what RAILYARD_LAB_NETNS says; if that is not set, the launcher's own.
  std::string network_namespaces;
};

/// How a job ended.
struct LaunchReport {
  /// 0, or that of the first rank that failed: its exit code, or 128 and the number of the signal that ended it. A
  /// launcher that was itself interrupted answers 128 and that signal.
  int exit_code = 0;
  std::int32_t first_failed = -1;
  std::string failure;  ///< "rank 3 (pid 77) exited with code 7"
};

/// Runs `command` as every rank. SIGINT and SIGTERM are passed on; a second one ends the ranks at once. When a rank
/// fails, the others are told (the rendezvous names it to those who wait for it), then ended. A rank is its process and
/// what that started: nothing of it is left when this returns. An error means that the job never ran.
Result<LaunchReport> launch_command(const LaunchOptions& options, const std::vector<std::string>& command);

/// The same with a function in forked children; its answer is the rank's exit code. Call it while this process has one
/// thread.
Result<LaunchReport> launch_function(const LaunchOptions& options, const std::function<int(int rank)>& body);

}  // namespace railyard::launcher
