/// RLIMIT_FSIZE: a file longer than the process may write is not an error but a signal, so it is asked first.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace railyard {

inline bool longer_than_allowed(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
}

}  // namespace railyard
