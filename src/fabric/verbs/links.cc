/// Links: those of this rail, and those of peers to it.
#include <algorithm>

#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

Result<RemoteId> VerbsRail::connect(std::span<const std::byte> address, LinkTag tag) {
  if (auto running = refuse_if_stopped(); !running) return std::move(running.error());
  auto where = RailAddress::parse(address, port_.infiniband, name_);
  if (!where) return std::move(where.error());
  auto peer = office_.peer(*where, name_);
  if (!peer) return std::move(peer.error());
  Pair* pair = pair_of_facing(tag, **peer);
  const auto first = pair == nullptr ? Letter::Kind::call : Letter::Kind::bind;
  if (pair == nullptr) {
    auto made = make_pair(*peer);
    if (!made) return std::move(made.error());
    pair = *made;
  }
  const RemoteId remote = take_slot();
  links_[remote] = {Link::State::connecting, pair, tag};
  pair->link = remote;
  pair->bound = false;
  begin_meeting(*pair, first);
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
    if (pair == nullptr || pair->link || !pair->guest || pair->guest->id != tag.facing) continue;
    if (pair->peer->address.name == peer.address.name && pair->state != Pair::State::closing) return pair;
  }
  return nullptr;
}

void VerbsRail::lose(RemoteId remote, int error, bool refused) {
  Link& link = links_[remote];
  if (link.state == Link::State::lost) return;
  link.state = Link::State::lost;
  pending_.push_lost(remote, error, refused, error == kUnwanted);
}

/// A connection to the peer's liveness port stands as long as its process has not looked at it.
Liveness VerbsRail::liveness(RemoteId remote) {
  if (gone_ || !known(remote) || links_[remote].pair == nullptr) return Liveness::unknown;
  const RailAddress& there = links_[remote].pair->peer->address;
  auto& inquiry = inquiries_[remote];
  if (inquiry.name != there.name || !inquiry.knock.open())
    inquiry = {there.name, Knock(ipv4_of(there.gid), there.witness)};
  return inquiry.knock.liveness();
}

void VerbsRail::disconnect(RemoteId remote) {
  if (!known(remote)) return;
  inquiries_.erase(remote);
  const Link link = links_[remote];
  if (Pair* const pair = link.pair; pair != nullptr) {
    pair->link.reset();
    if (pair->guest && pair->bound && pair->state == Pair::State::standing && pair->queue.outstanding() == 0) {
      // The peer's link goes on.
      pair->bound = false;
      Letter letter;
      letter.kind = Letter::Kind::unbind;
      letter.here = handle_of(*pair);
      letter.there = pair->there;
      letter.tagged = true;
      letter.tag = link.tag;
      write_farewell(pair->peer, letter);
    } else {
      pair->leaves = pair->guest;
      close_pair(*pair, true);
    }
  }
  links_[remote] = {};
  pending_.forget_lost(remote);
  free_links_.push_back(remote);
}

bool VerbsRail::welcome(const LinkTag& tag) const {
  const auto lives = lives_.find(tag.id);
  if (lives == lives_.end()) return true;
  return tag.epoch >= lives->second.newest && (!lives->second.fenced || tag.epoch > *lives->second.fenced);
}

void VerbsRail::seat_guest(Pair& pair, const LinkTag& tag) {
  if (pair.guest && (pair.guest->id != tag.id || pair.guest->epoch != tag.epoch)) report_left(*pair.guest);
  pair.guest = tag;
  lives_[tag.id].newest = tag.epoch;
}

void VerbsRail::report_left(const LinkTag& tag) { pending_.push_left(tag); }

void VerbsRail::close_guests(LinkName id, std::uint32_t epoch, bool fences) {
  for (Slot& slot : slots_) {
    Pair* const pair = slot.pair.get();
    if (pair == nullptr) continue;
    const bool closing = pair->state == Pair::State::closing;
    const auto& tag = closing ? pair->leaves : pair->guest;
    if (!tag || tag->id != id || tag->epoch > epoch || pair->shut_out) continue;
    if (fences) {
      pair->shut_out = id;
      ++lives_[id].closing;
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
  Lives& lives = lives_[tag.id];
  if (!lives.fenced || *lives.fenced < tag.epoch) {
    lives.fenced = tag.epoch;
    close_guests(tag.id, tag.epoch, true);
    lives.fence_mark = pending_.mark();
  }
  return lives.closing == 0 && pending_.past(lives.fence_mark);
}

}  // namespace railyard::fabric::verbs
