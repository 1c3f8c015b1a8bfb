/// Stopping another process for sure: SIGSTOP reaches its threads one after another, after `kill` has returned.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace railyard {

/// Every thread of it: the leader may be stopped while another one still runs.
inline bool is_stopped(pid_t process) {
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task", gone)) {
    std::ifstream file(thread.path() / "stat");
    std::string text;
    std::getline(file, text);
    const auto end = text.rfind(')');
    if (end == std::string::npos || text.size() <= end + 2 || text[end + 2] != 'T') return false;
  }
  return !gone;
}

/// False: there is no such process.
inline bool stop_process(pid_t process) {
  if (::kill(process, SIGSTOP) != 0) return false;
  while (!is_stopped(process)) {
    if (::kill(process, 0) != 0) return false;
    ::sched_yield();
  }
  return true;
}

}  // namespace railyard
