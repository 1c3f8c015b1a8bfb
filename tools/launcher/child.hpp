/// Starts the process of one rank.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "railyard/result.hpp"

namespace railyard::launcher {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Everything that a child needs to become a rank.
struct ChildPlan {
  std::int32_t rank = 0;
  Environment environment;            ///< set on top of this process's own
  std::vector<std::string> command;   ///< what to execute; empty: call `body`
  std::function<int(int rank)> body;  ///< its answer is the exit code
  std::function<void()> let_go;       ///< run first in a child that calls `body`: closes what is the launcher's
  int network_namespace = -1;         ///< a namespace to enter; -1: the launcher's own
  bool capture_output = false;
  bool keep_input = false;           ///< reads what the launcher reads; otherwise nothing
  sigset_t signals{};                ///< the mask to start with
  std::optional<rlimit> open_files;  ///< the limit to start with, where the launcher raised its own
};

/// A rank's process: the leader of a process group of its own, ended by the kernel when the launcher's thread ends.
struct Child {
  pid_t pid = -1;
  Fd output;  ///< what it writes to stdout and stderr, where that is captured
  Fd errors;
  int not_executed = 0;  ///< why the system would not execute the program; there is no process then
};

/// Returns once the program is executed or the body is about to run.
Result<Child> start_child(const ChildPlan& plan);

}  // namespace railyard::launcher
