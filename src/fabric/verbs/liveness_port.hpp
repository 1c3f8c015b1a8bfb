/// Whether a process is still there. A queue pair to a dead process is silent, like one behind a cut cable; but the
/// kernel of its machine answers for a TCP port that nobody has open any more. So a rail whose GID is an IPv4 address
/// keeps a port of that address open, on which nothing is ever said, and a rail that gets no answer connects there.
#pragma once

#include <cstdint>

#include "base/fd.hpp"
#include "base/ports.hpp"
#include "fabric/rail.hpp"

namespace railyard::fabric::verbs {

/// An open port.
class LivenessPort {
 public:
  /// Anybody may connect: a sweep takes no longer than this, however many do.
  static constexpr int kMostPerSweep = 32;

  LivenessPort() = default;
  /// An IPv4 address of 0 has none: then it holds nothing.
  static Result<LivenessPort> open(std::uint32_t ipv4, const PortRange& ports);

  std::uint16_t port() const { return port_; }
  /// Lets go of those who connected first.
  void sweep();

 private:
  Fd socket_;
  std::uint16_t port_ = 0;
};

/// One connection to a peer's liveness port. A refused one is tried again before it is believed (fabric/refusals.hpp).
class LivenessProbe {
 public:
  LivenessProbe() = default;
  LivenessProbe(std::uint32_t ipv4, std::uint16_t port);
  /// Whoever answers at that address says, again and again, that nobody is there. Never blocks.
  bool refused();
  /// What the connection tells now: nobody was there (`gone`), or its machine holds it (`alive`), also where the peer
  /// has just closed it, which takes a living process. Never blocks.
  Liveness liveness();
  /// Whether there is more to learn from it.
  bool open() const { return socket_ || refused_once(); }
  /// It was refused, and will try again.
  bool refused_once() const { return again_at_ != 0; }

 private:
  void connect();
  void note_refusal();
  /// Begins the next attempt if it is due.
  void try_again();
  /// False: the connection has not come about, or not yet.
  bool look();

  std::uint32_t ipv4_ = 0;
  std::uint16_t port_ = 0;
  Fd socket_;
  unsigned refusals_ = 0;
  std::int64_t again_at_ = 0;  ///< 0: not again
  bool stands_ = false;
};

}  // namespace railyard::fabric::verbs
