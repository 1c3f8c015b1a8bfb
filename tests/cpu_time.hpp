/// What this process spent of a core while something went on.
#pragma once

#include <sys/resource.h>

#include <chrono>

namespace railyard {

class CpuTime {
 public:
  /// Of one core, since this was made.
  double share() const {
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start_;
    return (used() - used_) / wall.count();
  }

 private:
  static double used() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double used_ = used();
};

}  // namespace railyard
