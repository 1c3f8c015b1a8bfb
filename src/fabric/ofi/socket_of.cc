#include "fabric/ofi/socket_of.hpp"

#include <poll.h>
#include <rdma/fi_endpoint.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
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

}  // namespace

int socket_of(fid_cq& queue, fid_ep& endpoint) {
  fi_wait_obj kind = FI_WAIT_UNSPEC;
  if (fi_control(&queue.fid, FI_GETWAITOBJ, &kind) != 0 || kind != FI_WAIT_POLLFD) return -1;
  fi_wait_pollfd waits{};
  (void)fi_control(&queue.fid, FI_GETWAIT, &waits);  // says how many there are
  std::vector<pollfd> descriptors(waits.nfds);
  waits.fd = descriptors.data();
  if (fi_control(&queue.fid, FI_GETWAIT, &waits) != 0) return -1;

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

}  // namespace railyard::fabric::ofi
