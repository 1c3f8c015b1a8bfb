#include "base/entropy.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>

namespace railyard {

namespace {

// Some sandboxes forbid the system call but let the device through.
Result<void> fill_from_device(std::span<std::byte> bytes) {
  const int fd = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Error(Status::io,
                 fmt::format("no random bytes: getrandom and /dev/urandom both failed: {}", std::strerror(errno)));
  }
  bool failed = false;
  while (!bytes.empty() && !failed) {
    const ssize_t count = ::read(fd, bytes.data(), bytes.size());
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else {
      failed = !(count < 0 && errno == EINTR);
    }
  }
  ::close(fd);
  if (failed) return Error(Status::io, "no random bytes: /dev/urandom could not be read");
  return {};
}

}  // namespace

Result<void> fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (!(count < 0 && errno == EINTR)) {
      return fill_from_device(bytes);
    }
  }
  return {};
}

}  // namespace railyard
