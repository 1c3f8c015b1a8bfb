#include "fabric/verbs/peer_liveness.hpp"

#include <algorithm>

#include "fabric/verbs/port.hpp"

namespace railyard::fabric::verbs {

namespace {

constexpr std::int64_t kConnectTime = 3'000'000'000;
/// For a process that does not come to it.
constexpr std::int64_t kProofTime = 20'000'000'000;
/// Until the addresses are tried again, doubled each time.
constexpr std::int64_t kAgain = 10'000'000'000;
constexpr unsigned kMostRounds = 7;

}  // namespace

void PeerLiveness::open(unsigned interface, LogRail rail) {
  interface_ = interface;
  rail_ = std::move(rail);
}

void PeerLiveness::close() {
  checks_.clear();
  waiting_.clear();
  questions_.clear();
}

const PeerLiveness::Known* PeerLiveness::find(std::uint64_t name) const {
  const auto found = known_.find(name);
  return found == known_.end() ? nullptr : &found->second;
}

void PeerLiveness::know(const VerbsRailAddress& peer, const Secret& key) {
  Known& known = known_[peer.name];
  known.key = key;
  if (!known.hosts.empty()) return;  // a rail's address does not change
  known.port = peer.host_port;
  known.hosts = peer.hosts;
}

void PeerLiveness::stood(std::uint64_t name) {
  heard(name);
  const auto found = known_.find(name);
  if (found == known_.end()) return;
  Known& peer = found->second;
  if (peer.in_check || peer.proven || peer.port == 0 || peer.hosts.empty()) return;
  peer.in_check = true;
  waiting_.push_back({name, 0, 0});
}

void PeerLiveness::heard(std::uint64_t name) {
  if (const auto found = known_.find(name); found != known_.end()) found->second.unacknowledged = false;
}

void PeerLiveness::unacknowledged(std::uint64_t name) {
  if (const auto found = known_.find(name); found != known_.end()) found->second.unacknowledged = true;
}

LivenessProbe PeerLiveness::probe(const CmAddress& peer) const {
  const Known* const known = find(peer.name);
  const auto key = known != nullptr ? std::optional(known->key) : std::nullopt;
  if (peer.liveness_port != 0) {
    if (peer.infiniband || (is_link_local(peer.gid) && interface_ == 0)) return {};
    return {{peer.gid, peer.liveness_port, interface_}, key};
  }
  if (known == nullptr || !known->proven) return {};
  return {{known->hosts[*known->proven], known->port, 0}, key};
}

Liveness PeerLiveness::ask(const CmAddress& peer) {
  LivenessProbe& question = questions_[peer.name];
  if (!question.open()) question = probe(peer);
  const Liveness answer = question.liveness();
  if (answer != Liveness::alive || peer.liveness_port != 0) return answer;
  const Known* const known = find(peer.name);
  return known == nullptr || known->unacknowledged ? Liveness::unknown : answer;
}

void PeerLiveness::look(std::int64_t now) {
  for (std::size_t i = 0; i < checks_.size();) {
    if (go_on(checks_[i], now)) {
      ++i;
      continue;
    }
    if (i + 1 < checks_.size()) checks_[i] = std::move(checks_.back());
    checks_.pop_back();
  }
  for (std::size_t i = std::min(waiting_.size(), kMostChecks); i > 0 && checks_.size() < kMostChecks; --i) {
    const Waiting next = waiting_.front();
    waiting_.pop_front();
    if (now < next.due) {
      waiting_.push_back(next);
      continue;
    }
    Check check;
    check.name = next.name;
    check.round = next.round;
    begin(check, now);
    checks_.push_back(std::move(check));
  }
}

void PeerLiveness::begin(Check& check, std::int64_t now) const {
  const Known& peer = known_.at(check.name);
  check.probe = LivenessProbe({peer.hosts[check.host], peer.port, 0}, peer.key);
  check.stood = false;
  check.until = now + kConnectTime;
}

bool PeerLiveness::go_on(Check& check, std::int64_t now) {
  Known& peer = known_.at(check.name);
  (void)check.probe.liveness();
  if (check.probe.proven()) {
    peer.proven = check.host;
    peer.in_check = false;
    return false;
  }
  if (check.probe.stands() && !check.stood) {
    check.stood = true;
    check.until = now + kProofTime;
  }
  if (check.probe.open() && now < check.until) return true;
  check.unanswered = check.unanswered || check.probe.stands();
  if (++check.host < peer.hosts.size()) {
    begin(check, now);
    return true;
  }
  end_round(check, now);
  return false;
}

/// Again later: its process may not have come to it, or the way there may not have been up.
void PeerLiveness::end_round(const Check& check, std::int64_t now) {
  Known& peer = known_.at(check.name);
  if (!check.unanswered && !std::exchange(told_, true))
    log_warn(rail_,
             "a peer's liveness port is reached at none of its host's addresses ({}, ... port {}): should such a peer "
             "be silent for RAILYARD_PEER_TIMEOUT_MS, it is lost, whether its process lives or not",
             text_of(peer.hosts.front()), peer.port);
  peer.in_check = check.round + 1 < kMostRounds;
  if (peer.in_check) waiting_.push_back({check.name, check.round + 1, now + (kAgain << check.round)});
}

}  // namespace railyard::fabric::verbs
