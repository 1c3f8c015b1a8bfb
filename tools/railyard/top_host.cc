#include "top_host.hpp"

#include <time.h>

#include <algorithm>
#include <cstdlib>

namespace railyard::tool {

std::vector<std::string> directories(const HostOptions& options) {
  if (!options.directory.empty()) return {options.directory};
  std::vector<std::string> all{telemetry::directory_of("on")};
  const char* const setting = std::getenv("RAILYARD_TELEMETRY");
  if (setting != nullptr) {
    const std::string named = telemetry::directory_of(setting);
    if (named != all.front()) all.push_back(named);
  }
  return all;
}

Result<SeenHost> look_at_host(const HostOptions& options) {
  SeenHost host;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  host.at = static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  if (!options.file.empty()) {
    auto snapshot = telemetry::read_file(options.file);
    if (!snapshot) return std::move(snapshot.error());
    SeenProcess seen;
    seen.found = {options.file, static_cast<pid_t>(snapshot->pid), snapshot->started,
                  telemetry::is_alive(options.file, static_cast<pid_t>(snapshot->pid), snapshot->started)};
    seen.now = std::move(*snapshot);
    host.processes.push_back(std::move(seen));
    return host;
  }
  for (const std::string& directory : directories(options)) {
    for (telemetry::Found& found : telemetry::list(directory)) {
      if (options.pid != 0 && found.pid != options.pid) continue;
      auto snapshot = telemetry::read_file(found.path);
      if (snapshot) {
        host.processes.push_back({std::move(found), std::move(*snapshot)});
      } else if (snapshot.status() != Status::not_found) {  // gone between the two looks is no news
        host.unreadable.push_back(snapshot.error().message());
      }
    }
  }
  return host;
}

}  // namespace railyard::tool
