/// Where the files of processes lie, which there are, and when one goes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace railyard::telemetry {

/// "railyard.telemetry.PID.START"; not "railyard-", which shared-memory objects begin with.
inline constexpr const char* kFilePrefix = "railyard.telemetry.";

/// The directory that a value of RAILYARD_TELEMETRY names: "on" is the default one, in memory: a file on a disk would
/// make its writer wait for the disk now and then.
std::string directory_of(const std::string& setting);

struct Found {
  std::string path;
  pid_t pid = 0;
  std::uint64_t started = 0;
  bool alive = false;
};
/// Files of this user in a directory whose names begin so; of everybody for root.
std::vector<Found> list(const std::string& directory, std::string_view prefix = kFilePrefix);

/// Whether the process that owns the file lives: it holds the file's lock, or it is in /proc with that start time.
bool is_alive(const std::string& path, pid_t pid, std::uint64_t started);
/// The kernel's start time of a process, in ticks since boot; 0: there is none.
std::uint64_t start_time(pid_t pid);

/// Files of dead processes that may go: older than an hour, and the oldest where there are more than a few. `all`:
/// every one. Returns how many went.
std::size_t clean(const std::string& directory, bool all = false, std::string_view prefix = kFilePrefix);

}  // namespace railyard::telemetry
