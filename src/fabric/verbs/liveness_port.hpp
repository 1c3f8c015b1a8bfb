/// Whether a process is still there. A queue pair to a dead process is silent, like one behind a cut cable; but the
/// kernel of its machine answers for a TCP port that nobody has open any more, and for one that is open, also while its
/// process does not look at it. So a rail keeps a port open, and a rail that gets no answer connects to it.
///
/// Who connects says a nonce, and a process that comes to it answers with a MAC of that under its rail's secret: so the
/// other side knows whom it has reached. A process that does not come to it answers nothing, and that is no fault.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/fd.hpp"
#include "base/ports.hpp"
#include "base/sha256.hpp"
#include "fabric/rail.hpp"
#include "fabric/secret.hpp"
#include "fabric/verbs/library.hpp"

namespace railyard::fabric::verbs {

using LivenessNonce = std::array<std::byte, 16>;

/// Where a liveness port is.
struct LivenessEndpoint {
  ibv_gid ip{};  ///< as GIDs hold addresses, ::ffff:10.0.0.1; all zero, for who listens: every one of the host
  std::uint16_t port = 0;  ///< 0: nowhere; for who listens: any
  unsigned interface = 0;  ///< of ours, that leads to an address of the link alone (fe80::)
};

/// An open port.
class LivenessPort {
 public:
  /// Anybody may connect: a sweep takes no longer than this, however many do.
  static constexpr int kMostPerSweep = 32;
  /// Connections whose nonce has not come; one more, and the oldest goes.
  static constexpr std::size_t kMostWaiting = 32;

  LivenessPort() = default;
  /// `key`: what MACs are made with.
  static Result<LivenessPort> open(const LivenessEndpoint& at, const PortRange& ports, const Secret& key);

  std::uint16_t port() const { return port_; }
  /// Answers those who connected first, and lets go of them.
  void sweep();

 private:
  struct Asked {
    Fd socket;
    LivenessNonce nonce{};
    std::size_t got = 0;
    std::int64_t until = 0;
  };

  /// True: it is over, with an answer or without.
  bool answer(Asked& asked) const;

  Fd socket_;
  std::uint16_t port_ = 0;
  Secret key_{};
  std::vector<Asked> waiting_;
};

/// One connection to a peer's liveness port. A refused one is tried again before it is believed (fabric/refusals.hpp),
/// and one that is answered by somebody without the secret is as good as refused: the peer's process has not that port.
class LivenessProbe {
 public:
  LivenessProbe() = default;
  /// `key`: of the peer's rail; without it every answer counts.
  LivenessProbe(const LivenessEndpoint& there, const std::optional<Secret>& key);
  /// Whoever answers at that address says, again and again, that nobody is there. Never blocks.
  bool refused();
  /// What the connection tells now: nobody was there (`gone`), or its machine holds it (`alive`), also where the peer
  /// has just answered it. Never blocks.
  Liveness liveness();
  /// Whether there is more to learn from it.
  bool open() const { return socket_ || refused_once(); }
  /// It was refused, and will try again.
  bool refused_once() const { return again_at_ != 0; }
  /// Somebody's machine holds it.
  bool stands() const { return socket_ && stands_; }
  /// It has led to the rail whose key this is.
  bool proven() const { return proven_; }

 private:
  void connect();
  void note_refusal();
  /// Begins the next attempt if it is due.
  void try_again();
  /// False: the connection has not come about, or not yet.
  bool look();
  void ask();
  Liveness take(std::size_t got);
  Liveness verdict() const;

  LivenessEndpoint there_;
  std::optional<Secret> key_;
  Fd socket_;
  unsigned refusals_ = 0;
  std::int64_t again_at_ = 0;  ///< 0: not again
  bool stands_ = false;
  bool proven_ = false;
  LivenessNonce nonce_{};
  Digest answer_{};
  std::size_t got_ = 0;  ///< of the answer
};

}  // namespace railyard::fabric::verbs
