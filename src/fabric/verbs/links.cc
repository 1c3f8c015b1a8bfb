/// Links: those of this rail, and those of peers to it.
#include <algorithm>

#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

Result<RemoteId> VerbsRail::connect(std::span<const std::byte> address, LinkTag tag) {
  if (auto running = refuse_if_stopped(); !running) return std::move(running.error());
  auto where = VerbsRailAddress::parse(address, port_.infiniband, name_);
  if (!where) return std::move(where.error());
  auto peer = connection_manager_.peer(*where, name_);
  if (!peer) return std::move(peer.error());
  Pair* pair = pair_of_facing(tag, **peer);
  const auto first = pair == nullptr ? CmMessage::Kind::call : CmMessage::Kind::bind;
  if (pair == nullptr) {
    auto made = make_pair(*peer);
    if (!made) return std::move(made.error());
    pair = *made;
  }
  const RemoteId remote = take_slot();
  links_[remote] = {VerbsLink::State::connecting, pair, tag};
  pair->link = remote;
  pair->bound = false;
  begin_handshake(*pair, first);
  return remote;
}

RemoteId VerbsRail::take_slot() {
  if (free_links_.empty()) {
    links_.emplace_back();
    return static_cast<RemoteId>(links_.size() - 1);
  }
  const RemoteId remote = free_links_.back();
  free_links_.pop_back();
  return remote;
}

/// The pair that the peer's link back uses already, if it has room for ours.
VerbsRail::Pair* VerbsRail::pair_of_facing(const LinkTag& tag, const Peer& peer) {
  if (tag.facing == 0 || peer.address.name == own_address_.name) return nullptr;
  for (Slot& slot : slots_) {
    Pair* const pair = slot.pair.get();
    if (pair == nullptr || pair->link || !pair->inbound_link || pair->inbound_link->id != tag.facing) continue;
    if (pair->peer->address.name == peer.address.name && pair->state != Pair::State::closing) return pair;
  }
  return nullptr;
}

void VerbsRail::lose(RemoteId remote, int error, bool refused) {
  VerbsLink& link = links_[remote];
  if (link.state == VerbsLink::State::lost) return;
  link.state = VerbsLink::State::lost;
  if (error == kNobodyThere && !refused) return pending_.push_unverified(remote, error);
  pending_.push_lost(remote, error, refused, error == kUnwanted);
}

/// A connection to the peer's liveness port stands as long as its process has not looked at it.
Liveness VerbsRail::liveness(RemoteId remote) {
  if (gone_ || !known(remote) || links_[remote].pair == nullptr) return Liveness::unknown;
  const VerbsRailAddress& there = links_[remote].pair->peer->address;
  auto& inquiry = inquiries_[remote];
  if (inquiry.name != there.name || !inquiry.liveness_probe.open())
    inquiry = {there.name, LivenessProbe(ipv4_of(there.gid), there.liveness_port)};
  const Liveness answer = inquiry.liveness_probe.liveness();
  return answer == Liveness::gone && !reached_.contains(there.name) ? Liveness::unknown : answer;
}

void VerbsRail::disconnect(RemoteId remote) {
  if (!known(remote)) return;
  inquiries_.erase(remote);
  const VerbsLink link = links_[remote];
  if (Pair* const pair = link.pair; pair != nullptr) {
    pair->link.reset();
    if (pair->inbound_link && pair->bound && pair->state == Pair::State::standing && pair->queue.outstanding() == 0) {
      // The peer's link goes on.
      pair->bound = false;
      CmMessage message;
      message.kind = CmMessage::Kind::unbind;
      message.here = handle_of(*pair);
      message.there = pair->there;
      message.tagged = true;
      message.tag = link.tag;
      write_disconnect(pair->peer, message);
    } else {
      pair->leaves = pair->inbound_link;
      close_pair(*pair, true);
    }
  }
  links_[remote] = {};
  pending_.forget_lost(remote);
  free_links_.push_back(remote);
}

bool VerbsRail::welcome(const LinkTag& tag) const {
  const auto epochs = epochs_.find(tag.id);
  if (epochs == epochs_.end()) return true;
  return tag.epoch >= epochs->second.newest && (!epochs->second.fenced || tag.epoch > *epochs->second.fenced);
}

void VerbsRail::seat_inbound_link(Pair& pair, const LinkTag& tag) {
  if (pair.inbound_link && (pair.inbound_link->id != tag.id || pair.inbound_link->epoch != tag.epoch))
    report_left(*pair.inbound_link);
  pair.inbound_link = tag;
  epochs_[tag.id].newest = tag.epoch;
}

void VerbsRail::report_left(const LinkTag& tag) { pending_.push_left(tag); }

void VerbsRail::close_inbound_links(LinkName id, std::uint32_t epoch, bool fences) {
  for (Slot& slot : slots_) {
    Pair* const pair = slot.pair.get();
    if (pair == nullptr) continue;
    const bool closing = pair->state == Pair::State::closing;
    const auto& tag = closing ? pair->leaves : pair->inbound_link;
    if (!tag || tag->id != id || tag->epoch > epoch || pair->shut_out) continue;
    if (fences) {
      pair->shut_out = id;
      ++epochs_[id].closing;
      pair->leaves.reset();
    } else {
      pair->leaves = tag;
    }
    if (closing) continue;
    // What the peer's link and ours share ends for both.
    if (pair->link) lose(*pair->link, kPeerEnded, false);
    close_pair(*pair, true);
  }
}

bool VerbsRail::fence(LinkTag tag) {
  InboundEpochs& epochs = epochs_[tag.id];
  if (!epochs.fenced || *epochs.fenced < tag.epoch) {
    epochs.fenced = tag.epoch;
    close_inbound_links(tag.id, tag.epoch, true);
    epochs.fence_mark = pending_.mark();
  }
  return epochs.closing == 0 && pending_.past(epochs.fence_mark);
}

}  // namespace railyard::fabric::verbs
