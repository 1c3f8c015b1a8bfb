/// Reading another process's memory straight into one's own: one copy where a ring needs two.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "shm/object.hpp"

namespace railyard::shm {

/// The process behind a peer's object, as far as its memory can be read from here.
class PeerMemory {
 public:
  PeerMemory() = default;
  /// Finds out by reading what the peer says lies in its memory: its identity. Another pid namespace, a system that
  /// forbids it (ptrace rules), or a pid that has gone to another process: not readable.
  static PeerMemory probe(const PeerObject& peer);

  bool readable() const { return pid_ != 0; }
  /// It is this very process.
  bool own() const;
  /// All of the bytes, or false.
  bool read(std::span<std::byte> to, std::uint64_t address) const;

 private:
  pid_t pid_ = 0;
};

}  // namespace railyard::shm
