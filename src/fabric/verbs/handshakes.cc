/// How two rails agree on a queue pair. Every CM message may be lost, doubled or late: what asks for an answer is
/// repeated, what is repeated is answered again, and who knows nothing of a queue pair says that it is over. What
/// arrives here is from a rail of the job, and new: admission.hpp.
///
///     connector                           acceptor
///     call (its end, its link's tag)  ->  makes an end, joins it
///     joins its own                   <-  answer (its end; the tag of its link back, if that was calling, too)
///     ready                           ->  stands
///
/// A link back that is wanted later takes the same queue pair: bind (tag) -> bound. If both call at once for links that
/// face each other, the rail with the smaller name is the connector; the other answers with the end it has made.
#include <algorithm>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "fabric/refusals.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

namespace {

constexpr std::int64_t kFirstWait = 20'000'000;
constexpr std::int64_t kLongestWait = 500'000'000;
/// Between two questions to a peer whose link uses a queue pair that ours does not.
constexpr std::int64_t kAskEvery = 500'000'000;

/// Between two lines of the log about messages without a proof.
constexpr std::int64_t kLogEvery = 60'000'000'000;

std::int64_t wait_after(int tries) { return std::min(kFirstWait << std::min(tries, 10), kLongestWait); }

}  // namespace

void VerbsRail::begin_handshake(Pair& pair, CmMessage::Kind kind) {
  pair.tries = 0;
  pair.next_message = SteadyClock().now() + kFirstWait;
  pair.liveness_probe = {};
  if (!pair.in_handshake) handshaking_.push_back(&pair);
  pair.in_handshake = true;
  write_cm_message(pair, kind);
}

void VerbsRail::write_cm_message(Pair& pair, CmMessage::Kind kind) {
  CmMessage message;
  message.kind = kind;
  message.from = own_address_;
  message.here = handle_of(pair);
  message.there = pair.there;
  if (pair.link != nullptr) {
    message.tagged = true;
    message.tag = pair.link->tag;
  }
  if (kind == CmMessage::Kind::call || kind == CmMessage::Kind::answer) message.end = end_of(pair);
  send_cm_message(*pair.peer, message);
}

void VerbsRail::reply(const CmMessage& message, CmMessage::Kind kind, CmMessage::Reason reason) {
  auto peer = connection_manager_.peer(message.from, name_);
  if (!peer) return;
  CmMessage answer;
  answer.kind = kind;
  answer.reason = reason;
  answer.from = own_address_;
  answer.here = message.there;
  answer.there = message.here;
  answer.tagged = message.tagged;
  answer.tag = message.tag;
  send_cm_message(**peer, answer);
  lately_[next_lately_++ % lately_.size()] = std::move(*peer);
}

void VerbsRail::write_disconnect(std::shared_ptr<Peer> peer, CmMessage message) {
  message.from = own_address_;
  send_cm_message(*peer, message);
  disconnects_.push_back({std::move(peer), message, SteadyClock().now() + kFirstWait, 0});
}

void VerbsRail::say_over(Pair& pair) {
  CmMessage message;
  message.kind = CmMessage::Kind::over;
  message.here = handle_of(pair);
  message.there = pair.there;
  if (pair.there != 0) write_disconnect(pair.peer, message);
}

void VerbsRail::send_cm_message(const Peer& to, const CmMessage& message) {
  (void)connection_manager_.send(to, admission_.seal(message, to.address.name));
}

/// Nobody without a secret is answered: an answer would tell them of us, and could be sent to whomever they name.
void VerbsRail::take_datagram(std::span<const std::byte> bytes) {
  const std::uint64_t before = admission_.unproven();
  if (const auto message = admission_.admit(bytes)) return read_cm_message(*message);
  if (admission_.unproven() == before) return;
  static LogLimit limit(1, kLogEvery);
  if (limit.allow(SteadyClock().now()))
    log_warn(
        in_log(),
        "a CM message that does not prove the rail's secret was dropped ({} so far). Do all ranks have the same job "
        "key and release?",
        admission_.unproven());
}

void VerbsRail::read_cm_message(const CmMessage& message) {
  if (message.from.infiniband != port_.infiniband) return;
  peer_liveness_.heard(message.from.name);
  Pair* const pair = find_pair(message.there);
  const bool ours = pair != nullptr && pair->peer->address.name == message.from.name;
  switch (message.kind) {
    case CmMessage::Kind::call:
      return take_call(message);
    case CmMessage::Kind::answer:
      return take_answer(message);
    case CmMessage::Kind::refuse:
      return take_refusal(message);
    case CmMessage::Kind::gone:
      std::erase_if(disconnects_, [&](const Disconnect& one) {
        return one.message.here == message.there && one.message.tagged == message.tagged &&
               one.peer->address.name == message.from.name;
      });
      return;
    case CmMessage::Kind::over:
      // A connector that never had our answer never used it: nobody leaves.
      if (ours && pair->state == Pair::State::answering && message.reason == CmMessage::Reason::unknown)
        inbound_.withdraw(*pair);
      if (ours) pair_failed(*pair, kPeerEnded, false);
      return reply(message, CmMessage::Kind::gone);
    case CmMessage::Kind::unbind:
      take_unbind(message);
      return reply(message, CmMessage::Kind::gone);
    default:
      break;
  }
  // The rest is about a queue pair that we should know.
  if (!ours) return reply(message, CmMessage::Kind::over, CmMessage::Reason::unknown);
  switch (message.kind) {
    case CmMessage::Kind::ready:
      if (pair->state == Pair::State::answering) pair->state = Pair::State::standing;
      if (pair->state == Pair::State::standing && pair->bound) link_stands(*pair);
      break;
    case CmMessage::Kind::bind:
      take_bind(message);
      break;
    case CmMessage::Kind::bound:
      // Noted for the link it was asked for: a late answer may be of another.
      if (pair->link != nullptr && pair->state == Pair::State::standing && message.tagged &&
          message.tag.id == pair->link->tag.id && message.tag.epoch == pair->link->tag.epoch) {
        pair->bound = true;
        link_stands(*pair);
      }
      break;
    case CmMessage::Kind::ask:
      reply(message, CmMessage::Kind::here);
      break;
    case CmMessage::Kind::here:
      pair->tries = 0;
      break;
    default:
      break;
  }
}

void VerbsRail::link_stands(Pair& pair) {
  if (pair.link != nullptr) links_.stands(*pair.link);
}

void VerbsRail::take_call(const CmMessage& message) {
  if (!message.tagged) return;
  for (Slot& slot : slots_) {
    Pair* const pair = slot.pair.get();
    if (pair == nullptr || pair->there != message.here || pair->peer->address.name != message.from.name) continue;
    if (pair->state == Pair::State::answering) write_cm_message(*pair, CmMessage::Kind::answer);
    if (pair->state != Pair::State::calling) return;  // the same call again
  }
  if (!inbound_.welcome(message.tag)) return reply(message, CmMessage::Kind::refuse, CmMessage::Reason::unwanted);
  Pair* own = nullptr;
  if (message.from.name != own_address_.name) {
    const VerbsLink* const facing = links_.facing(message.tag, [&](const VerbsLink& link) {
      return link.pair->state == Pair::State::calling && link.pair->peer->address.name == message.from.name;
    });
    if (facing != nullptr) own = facing->pair;
    if (own != nullptr && own_address_.name < message.from.name) return;  // it will answer our call
  }
  if (own == nullptr) {
    auto peer = connection_manager_.peer(message.from, name_);
    auto made = peer ? make_pair(std::move(*peer)) : Result<Pair*>(std::move(peer.error()));
    if (!made) {
      log_warn(in_log(), "a peer's link was not accepted: {}", made.error().text());
      return reply(message, CmMessage::Kind::refuse, CmMessage::Reason::no_room);
    }
    own = *made;
  }
  answer_call(*own, message);
}

void VerbsRail::answer_call(Pair& pair, const CmMessage& message) {
  if (int code = join(pair.pair.get(), pair.first_packet, message.end, message.from)) {
    log_warn(in_log(), "a peer's queue pair cannot be joined: {}", std::strerror(code));
    pair_failed(pair, kErrno + code, false);
    return reply(message, CmMessage::Kind::refuse, CmMessage::Reason::no_room);
  }
  pair.there = message.here;
  pair.state = Pair::State::answering;
  pair.bound = pair.link != nullptr;
  seat_inbound(pair, message.tag);
  begin_handshake(pair, CmMessage::Kind::answer);
}

void VerbsRail::take_answer(const CmMessage& message) {
  Pair* const pair = find_pair(message.there);
  if (pair == nullptr || pair->peer->address.name != message.from.name ||
      (pair->there != 0 && pair->there != message.here))
    return reply(message, CmMessage::Kind::over, CmMessage::Reason::unknown);
  if (pair->state == Pair::State::calling) {
    pair->there = message.here;
    if (message.tagged && !inbound_.welcome(message.tag)) return pair_failed(*pair, kUnwanted, false);
    if (int code = join(pair->pair.get(), pair->first_packet, message.end, message.from))
      return pair_failed(*pair, kErrno + code, false);
    pair->state = Pair::State::standing;
    pair->bound = true;
    if (message.tagged) seat_inbound(*pair, message.tag);
    link_stands(*pair);
  }
  write_cm_message(*pair, CmMessage::Kind::ready);
}

void VerbsRail::take_bind(const CmMessage& message) {
  Pair& pair = *find_pair(message.there);
  if (pair.state != Pair::State::standing || !message.tagged) return;  // it will be asked again
  const bool again = pair.inbound && pair.inbound->id == message.tag.id && pair.inbound->epoch == message.tag.epoch;
  if (!again) {
    if (!inbound_.welcome(message.tag)) return reply(message, CmMessage::Kind::refuse, CmMessage::Reason::unwanted);
    if (!seat_inbound(pair, message.tag)) return reply(message, CmMessage::Kind::over);
  }
  reply(message, CmMessage::Kind::bound);
}

void VerbsRail::take_unbind(const CmMessage& message) {
  Pair* const pair = find_pair(message.there);
  if (pair == nullptr || pair->peer->address.name != message.from.name || !pair->inbound) return;
  if (pair->inbound->id != message.tag.id || pair->inbound->epoch != message.tag.epoch) return;
  // What it sent has been acknowledged: its completions came before this CM message.
  if (pair->link != nullptr) return inbound_.left(*pair);
  close_pair(*pair, true);
}

void VerbsRail::take_refusal(const CmMessage& message) {
  Pair* const pair = find_pair(message.there);
  if (pair == nullptr || pair->peer->address.name != message.from.name || pair->link == nullptr) return;
  if (!pair->link->connecting()) return;
  const int why = message.reason == CmMessage::Reason::no_room ? kNoRoom : kUnwanted;
  if (pair->inbound) {
    // Our link alone is unwanted.
    VerbsLink& link = *std::exchange(pair->link, nullptr);
    link.pair = nullptr;
    lose(link, why, false);
  } else {
    pair_failed(*pair, why, false);
  }
}

void VerbsRail::look_at_handshakes() {
  const std::int64_t now = SteadyClock().now();
  liveness_port_.sweep();
  peer_liveness_.look(now);
  if (connection_manager_.broken()) {
    drain();  // no completion of its old epoch is to take the room of a new one
    connection_manager_.revive();
  }
  for (std::size_t i = 0; i < handshaking_.size();) {
    Pair& pair = *handshaking_[i];
    const bool settled = pair.state == Pair::State::standing && (pair.link == nullptr || pair.bound);
    if (settled) {
      refusals_.stood(pair.peer->address.name);
      peer_liveness_.stood(pair.peer->address.name);
      pair.in_handshake = false;
      pair.liveness_probe = {};
      pair.tries = 0;
      handshaking_[i] = handshaking_.back();
      handshaking_.pop_back();
      continue;
    }
    if (pair.liveness_probe.refused()) {
      pair_failed(pair, kNobodyThere, refusals_.reached(pair.peer->address.name));  // takes it out
      continue;
    }
    const std::size_t before = handshaking_.size();
    if (now >= pair.next_message) repeat(pair, now);
    if (handshaking_.size() == before) ++i;
  }
  for (Disconnect& ending : disconnects_) {
    if (now < ending.next) continue;
    send_cm_message(*ending.peer, ending.message);
    ending.next = now + wait_after(++ending.tries);
  }
  std::erase_if(disconnects_, [](const Disconnect& one) { return one.tries > kMostTries / 2; });
  if (now < next_slow_look_) return;
  next_slow_look_ = now + (ask_inbound_links() ? kAskEvery : kRefusalPause);
  look_for_device();
}

void VerbsRail::repeat(Pair& pair, std::int64_t now) {
  if (++pair.tries > kMostTries) return pair_failed(pair, kNoAnswer, false);
  pair.next_message = now + wait_after(pair.tries);
  if (pair.tries % kProbeEvery == kProbeEvery - 1 && !pair.liveness_probe.open())
    pair.liveness_probe = peer_liveness_.probe(pair.peer->address);
  switch (pair.state) {
    case Pair::State::calling:
      return write_cm_message(pair, CmMessage::Kind::call);
    case Pair::State::answering:
      return write_cm_message(pair, CmMessage::Kind::answer);
    default:
      return write_cm_message(pair, CmMessage::Kind::bind);
  }
}

/// A queue pair that we never post to says nothing of its peer's death. False: some of them must be looked at again in
/// a moment.
bool VerbsRail::ask_inbound_links() {
  bool all = true;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Pair* const pair = slots_[i].pair.get();
    if (pair == nullptr || pair->link != nullptr || pair->state != Pair::State::standing || pair->in_handshake)
      continue;
    if (pair->liveness_probe.refused() || pair->tries > kMostTries) {
      pair_failed(*pair, kNobodyThere, true);
      continue;
    }
    if (pair->liveness_probe.refused_once()) {
      all = false;
      continue;
    }
    if (++pair->tries > 1 && !pair->liveness_probe.open())
      pair->liveness_probe = peer_liveness_.probe(pair->peer->address);
    write_cm_message(*pair, CmMessage::Kind::ask);
  }
  return all;
}

}  // namespace railyard::fabric::verbs
