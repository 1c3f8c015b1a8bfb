/// Refusals: when refused connections prove that a peer's process is gone. A process that lives refuses nobody, but who
/// refuses may be another: a packet filter, another machine at the peer's address, whoever has its port for a moment.
/// So it takes several refusals in a row, some time apart, and a connection to or from that peer that has stood before.
#pragma once

#include <cstdint>
#include <map>

namespace railyard::fabric {

inline constexpr unsigned kRefusalsToBelieve = 3;
inline constexpr std::int64_t kRefusalPause = 10'000'000;  ///< nanoseconds between two that count

/// By the names of peers' rails.
template <typename Name>
class Refusals {
 public:
  /// A connection to it, or from it, stands.
  void stood(const Name& name) { peers_[name] = {.reached = true}; }
  bool reached(const Name& name) const {
    const auto found = peers_.find(name);
    return found != peers_.end() && found->second.reached;
  }
  /// One more. True: its process is gone.
  bool refused(const Name& name, std::int64_t now) {
    Peer& peer = peers_[name];
    if (peer.count == 0 || now - peer.last >= kRefusalPause) {
      ++peer.count;
      peer.last = now;
    }
    return peer.reached && peer.count >= kRefusalsToBelieve;
  }

 private:
  struct Peer {
    bool reached = false;
    unsigned count = 0;  ///< since it was last reached
    std::int64_t last = 0;
  };
  std::map<Name, Peer> peers_;
};

}  // namespace railyard::fabric
