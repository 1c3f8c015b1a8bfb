/// The ways that carry memory of GPUs between the ranks of a test: shared memory, one tcp rail, several.
#pragma once

#include <sys/socket.h>

#include <filesystem>

#include "gpu_memory.hpp"
#include "process_world.hpp"

namespace railyard {

struct GpuWay {
  const char* name;
  std::uint32_t rails;  ///< over tcp; 0: through shared memory
};

inline std::ostream& operator<<(std::ostream& out, const GpuWay& way) { return out << way.name; }

inline constexpr GpuWay kGpuWays[] = {{"SharedMemory", 0}, {"OneRail", 1}, {"TwoRails", 2}};

inline Settings settings_over(const GpuWay& way) {
  return way.rails == 0 ? direct_settings() : loopback_settings(way.rails);
}

inline void run_processes_over(const GpuWay& way, int size,
                               const std::function<void(World&, ProcessRendezvous&)>& body) {
  run_processes(
      size, [way](int) { return settings_over(way); }, body);
}

/// Ends one of this process's connections as a dead path does, for both ends at once. Whether there was one.
inline bool cut_a_connection(std::size_t which) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    if (::getpeername(number, reinterpret_cast<sockaddr*>(&name), &length) != 0) continue;
    if (name.ss_family == AF_INET || name.ss_family == AF_INET6) found.push_back(number);
  }
  return !found.empty() && ::shutdown(found[which % found.size()], SHUT_RDWR) == 0;
}

}  // namespace railyard
