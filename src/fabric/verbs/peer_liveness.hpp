/// What a rail knows of its peers' liveness ports: where each one is, and whether that is believed.
///
/// A port at the address that is the peer's GID is believed: the queue pair leads there too. Where a GID is no IP
/// address, its rail names addresses of its host, and any of them may lead to another host, or to this one. So once a
/// link to that rail stands, one after the other is tried until one leads to a process that proves the rail's secret.
/// Only that one is asked when the peer is silent. It may be reached beside the path of the traffic; then it does not
/// speak for a path on which the peer's port has ceased to acknowledge.
#pragma once

#include <deque>
#include <unordered_map>

#include "base/log.hpp"
#include "fabric/verbs/address.hpp"
#include "fabric/verbs/liveness_port.hpp"

namespace railyard::fabric::verbs {

class PeerLiveness {
 public:
  static constexpr std::size_t kMostChecks = 32;  ///< connections at once that find out where ports are

  /// `interface`: that of the rail's own GID, for addresses of the link alone.
  void open(unsigned interface, LogRail rail);
  /// Nothing is asked any more.
  void close();

  /// A rail that we call.
  void know(const VerbsRailAddress& peer, const Secret& key);
  /// A link with it stands.
  void stood(std::uint64_t name);
  /// Its device has said something.
  void heard(std::uint64_t name);
  /// Its port did not acknowledge.
  void unacknowledged(std::uint64_t name);

  /// A connection to its port; to nowhere, where none is believed.
  LivenessProbe probe(const CmAddress& peer) const;
  /// What its port tells of a peer that is silent. Never blocks.
  Liveness ask(const CmAddress& peer);
  /// It is not asked about any more.
  void forget_question(std::uint64_t name) { questions_.erase(name); }

  /// Goes on with finding out; never blocks, and does a bounded number of things.
  void look(std::int64_t now);

 private:
  struct Known {
    Secret key{};
    std::uint16_t port = 0;
    std::vector<ibv_gid> hosts;
    std::optional<std::size_t> proven;  ///< which of them leads there
    bool in_check = false;              ///< it is in `checks_` or in `waiting_`
    bool unacknowledged = false;        ///< since it was last heard
  };
  struct Check {
    std::uint64_t name = 0;
    unsigned round = 0;
    std::size_t host = 0;
    LivenessProbe probe;
    bool stood = false;       ///< this one has
    bool unanswered = false;  ///< one of them stood, and nobody came to it
    std::int64_t until = 0;
  };
  struct Waiting {
    std::uint64_t name = 0;
    unsigned round = 0;
    std::int64_t due = 0;
  };

  void begin(Check& check, std::int64_t now) const;
  /// False: it is over.
  bool go_on(Check& check, std::int64_t now);
  void end_round(const Check& check, std::int64_t now);
  const Known* find(std::uint64_t name) const;

  unsigned interface_ = 0;
  LogRail rail_;
  bool told_ = false;
  std::unordered_map<std::uint64_t, Known> known_;  ///< by name, as long as our rail
  std::vector<Check> checks_;
  std::deque<Waiting> waiting_;
  std::unordered_map<std::uint64_t, LivenessProbe> questions_;  ///< by name: after peers that are silent
};

}  // namespace railyard::fabric::verbs
