/* Rails that misbehave. The plugin's calls of libc come to the program first: reads from one connection are late here.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/tcp.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "gin_driver.h"

static atomic_int slow_fd = -1;
static atomic_ullong open_at; /* when the slow connection has something again */
static atomic_ullong slowed;

/* Whether a read finds nothing yet. After each one that does, the next waits. */
static bool is_late(int fd) {
  if (fd < 0 || fd != atomic_load_explicit(&slow_fd, memory_order_relaxed)) return false;
  const uint64_t now = now_ns();
  if (now < atomic_load(&open_at)) return true;
  const uint64_t count = atomic_fetch_add(&slowed, 1);
  atomic_store(&open_at, now + 500000 + (count * 2654435761U) % 4000000);
  return false;
}

typedef ssize_t (*recv_call)(int, void *, size_t, int);
typedef ssize_t (*readv_call)(int, const struct iovec *, int);

__attribute__((visibility("default"))) ssize_t recv(int fd, void *buffer, size_t bytes, int flags) {
  static _Atomic(recv_call) real;
  recv_call call = atomic_load(&real);
  if (call == NULL) {
    *(void **)&call = dlsym(RTLD_NEXT, "recv");
    atomic_store(&real, call);
  }
  if (!is_late(fd)) return call(fd, buffer, bytes, flags);
  errno = EAGAIN;
  return -1;
}

__attribute__((visibility("default"))) ssize_t readv(int fd, const struct iovec *vectors, int count) {
  static _Atomic(readv_call) real;
  readv_call call = atomic_load(&real);
  if (call == NULL) {
    *(void **)&call = dlsym(RTLD_NEXT, "readv");
    atomic_store(&real, call);
  }
  if (!is_late(fd)) return call(fd, vectors, count);
  errno = EAGAIN;
  return -1;
}

/* The connection that has carried most, and a good part at all; -1: none. */
static int busiest(void) {
  int found = -1;
  uint64_t most = 1 << 18;
  for (int fd = 3; fd < 1024; ++fd) {
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof(peer);
    struct tcp_info info;
    socklen_t info_bytes = sizeof(info);
    memset(&info, 0, sizeof(info));
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0 || peer.ss_family == AF_UNIX) continue;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) != 0) continue;
    const uint64_t carried = info.tcpi_bytes_acked + info.tcpi_bytes_received;
    if (info.tcpi_state != 1 /* established */ || carried <= most) continue;
    most = carried;
    found = fd;
  }
  return found;
}

bool slow_a_rail(void) {
  const int fd = busiest();
  atomic_store(&slow_fd, fd);
  return fd >= 0;
}
uint64_t times_slowed(void) { return atomic_load(&slowed); }

bool cut_a_rail(void) {
  const int fd = busiest();
  if (fd < 0) return false;
  CHECK(shutdown(fd, SHUT_RDWR) == 0, "shutdown");
  return true;
}
