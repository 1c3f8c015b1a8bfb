/// Links: those of this rail, and those of peers to it.
#include <algorithm>

#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

Result<RemoteId> VerbsRail::connect(std::span<const std::byte> address, LinkTag tag) {
  if (auto running = refuse_if_gone(); !running) return std::move(running.error());
  auto where = VerbsRailAddress::parse(address, port_.infiniband, name_);
  if (!where) return std::move(where.error());
  admission_.know(*where);
  peer_liveness_.know(*where, admission_.key_of(*where));
  auto peer = connection_manager_.peer(*where, name_);
  if (!peer) return std::move(peer.error());
  Pair* pair = pair_of_facing(tag, **peer);
  const auto first = pair == nullptr ? CmMessage::Kind::call : CmMessage::Kind::bind;
  if (pair == nullptr) {
    auto made = make_pair(*peer);
    if (!made) return std::move(made.error());
    pair = *made;
  }
  VerbsLink& link = links_.take(tag);
  link.pair = pair;
  link.peer = where->name;
  pair->link = &link;
  pair->bound = false;
  begin_handshake(*pair, first);
  return link.remote;
}

/// The pair that the peer's link back uses already, if it has room for ours.
VerbsRail::Pair* VerbsRail::pair_of_facing(const LinkTag& tag, const Peer& peer) {
  if (tag.facing == 0 || peer.address.name == own_address_.name) return nullptr;
  return inbound_.find(tag.facing, [&](const Pair& pair) {
    return pair.link == nullptr && pair.peer->address.name == peer.address.name && pair.state != Pair::State::closing;
  });
}

void VerbsRail::lose(VerbsLink& link, int error, bool refused) {
  if (link.pair != nullptr) turn_away(link.pair->queue);
  const bool nobody = error == kNobodyThere;
  links_.lose(link,
              {.error = error, .refused = refused, .unverified = nobody && !refused, .unwanted = error == kUnwanted});
}

/// A connection to the peer's liveness port stands as long as its process has not looked at it.
Liveness VerbsRail::liveness(RemoteId remote) {
  const VerbsLink* const link = links_.find(remote);
  if (gone_ || link == nullptr || link->pair == nullptr) return Liveness::unknown;
  const CmAddress& there = link->pair->peer->address;
  const Liveness answer = peer_liveness_.ask(there);
  return answer == Liveness::gone && !refusals_.reached(there.name) ? Liveness::unknown : answer;
}

void VerbsRail::disconnect(RemoteId remote) {
  VerbsLink* const link = links_.find(remote);
  if (link == nullptr) return;
  peer_liveness_.forget_question(link->peer);
  if (Pair* const pair = link->pair; pair != nullptr) {
    pair->link = nullptr;
    turn_away(pair->queue);
    if (pair->inbound && pair->bound && pair->state == Pair::State::standing && pair->queue.outstanding() == 0) {
      // The peer's link goes on.
      pair->bound = false;
      CmMessage message;
      message.kind = CmMessage::Kind::unbind;
      message.here = handle_of(*pair);
      message.there = pair->there;
      message.tagged = true;
      message.tag = link->tag;
      write_disconnect(pair->peer, message);
    } else {
      close_pair(*pair, true);
    }
  }
  links_.release(*link);
}

bool VerbsRail::seat_inbound(Pair& pair, const LinkTag& tag) {
  return inbound_.seat(pair, tag, [this](Pair& other) { close_inbound(other); });
}

void VerbsRail::close_inbound(Pair& pair) {
  if (pair.link != nullptr) lose(*pair.link, kPeerEnded, false);
  close_pair(pair, true);
}

bool VerbsRail::fence(LinkTag tag) {
  return inbound_.fence(tag, [this](Pair& pair) { close_inbound(pair); });
}

}  // namespace railyard::fabric::verbs
