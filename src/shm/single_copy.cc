#include "shm/single_copy.hpp"

#include <sys/uio.h>
#include <unistd.h>

namespace railyard::shm {

PeerMemory PeerMemory::probe(const PeerObject& peer) {
  const ObjectHeader& owner = peer.header();
  PeerMemory memory;
  if (owner.pid <= 0 || owner.pid_namespace == 0 || owner.pid_namespace != own_pid_namespace()) return memory;
  memory.pid_ = owner.pid;
  Identity seen;
  const bool same = memory.read(std::as_writable_bytes(std::span(seen.bytes)), owner.probe_address) &&
                    seen.bytes == peer.identity().bytes;
  if (!same) memory.pid_ = 0;
  return memory;
}

bool PeerMemory::own() const { return pid_ == ::getpid(); }

bool PeerMemory::read(std::span<std::byte> to, std::uint64_t address) const {
  const iovec here{to.data(), to.size()};
  const iovec there{reinterpret_cast<void*>(address), to.size()};
  return ::process_vm_readv(pid_, &here, 1, &there, 1, 0) == static_cast<ssize_t>(to.size());
}

}  // namespace railyard::shm
