#include "fabric/ofi/socket_of.hpp"

#include <fcntl.h>
#include <poll.h>
#include <rdma/fi_endpoint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

namespace railyard::fabric::ofi {

namespace {

struct Name {
  std::array<char, sizeof(sockaddr_storage)> bytes{};
  std::size_t length = sizeof(sockaddr_storage);
};

bool equal(const Name& ours, const sockaddr_storage& theirs, socklen_t length) {
  return ours.length == length && std::memcmp(ours.bytes.data(), &theirs, length) == 0;
}

/// What the provider polls for the queue: the sockets of its endpoints, and descriptors to wake it. Empty where it does
/// not show them.
std::vector<pollfd> descriptors_of(fid_cq& queue) {
  fi_wait_obj kind = FI_WAIT_UNSPEC;
  if (fi_control(&queue.fid, FI_GETWAITOBJ, &kind) != 0 || kind != FI_WAIT_POLLFD) return {};
  fi_wait_pollfd waits{};
  (void)fi_control(&queue.fid, FI_GETWAIT, &waits);  // says how many there are
  std::vector<pollfd> descriptors(waits.nfds);
  waits.fd = descriptors.data();
  if (fi_control(&queue.fid, FI_GETWAIT, &waits) != 0) return {};
  return descriptors;
}

/// Calls `see(number, identity, listens)` for each socket of this process whose own address is this one.
template <typename See>
void for_sockets_at([[maybe_unused]] std::span<const std::byte> name, [[maybe_unused]] See&& see) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return;  // looking at a descriptor that another thread closes is harmless, and a race to the sanitizer
#endif
#endif
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", failure)) {
    const int number = static_cast<int>(std::strtol(entry.path().filename().c_str(), nullptr, 10));
    struct stat identity {};
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (::fstat(number, &identity) != 0 || !S_ISSOCK(identity.st_mode) ||
        ::getsockname(number, reinterpret_cast<sockaddr*>(&own), &length) != 0 || length != name.size() ||
        std::memcmp(&own, name.data(), length) != 0 ||
        ::getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0)
      continue;
    see(number, identity.st_ino, listens != 0);
  }
}

}  // namespace

void close_on_exec(fid_cq& queue) {
  for (const pollfd& descriptor : descriptors_of(queue)) ::fcntl(descriptor.fd, F_SETFD, FD_CLOEXEC);
}

void close_listener_on_exec(std::span<const std::byte> name) {
  for_sockets_at(name, [](int number, std::uint64_t /*identity*/, bool listens) {
    if (listens) ::fcntl(number, F_SETFD, FD_CLOEXEC);
  });
}

int socket_of(fid_cq& queue, fid_ep& endpoint) {
  const std::vector<pollfd> descriptors = descriptors_of(queue);
  Name here;
  Name there;
  if (fi_getname(&endpoint.fid, here.bytes.data(), &here.length) != 0) return -1;
  if (fi_getpeer(&endpoint, there.bytes.data(), &there.length) != 0) return -1;
  const auto found = std::find_if(descriptors.begin(), descriptors.end(), [&](const pollfd& descriptor) {
    sockaddr_storage own{};
    sockaddr_storage peer{};
    socklen_t own_length = sizeof(own);
    socklen_t peer_length = sizeof(peer);
    return ::getsockname(descriptor.fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
           ::getpeername(descriptor.fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
           equal(here, own, own_length) && equal(there, peer, peer_length);
  });
  return found == descriptors.end() ? -1 : found->fd;
}

Sockets sockets_at(std::span<const std::byte> name) {
  Sockets found;
  for_sockets_at(name, [&](int number, std::uint64_t identity, bool listens) {
    if (!listens) found.emplace_back(number, identity);
  });
  return found;
}

void close_leftovers(const Sockets& sockets) {
  for (const auto& [number, id] : sockets) {
    struct stat identity {};
    if (::fstat(number, &identity) == 0 && S_ISSOCK(identity.st_mode) && identity.st_ino == id) ::close(number);
  }
}

}  // namespace railyard::fabric::ofi
