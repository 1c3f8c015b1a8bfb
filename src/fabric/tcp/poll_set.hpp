/// Marks of what an epoll set of a tcp rail holds besides connections, which are marked by their own address.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

namespace railyard::fabric::tcp {

inline constexpr std::uint64_t kAdmissionMark = 1;
inline constexpr std::uint64_t kInterfaceMark = 2;
inline constexpr std::uint64_t kListenerMark = 3;
inline constexpr std::uint64_t kMisroutedMark = 4;

/// False: the kernel has no room for one more (errno).
inline bool watch_fd(int set, int descriptor, std::uint32_t events, std::uint64_t mark) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = mark;
  return ::epoll_ctl(set, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

}  // namespace railyard::fabric::tcp
