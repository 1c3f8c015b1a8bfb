/// How two rails agree on a queue pair. Every letter may be lost, doubled or late: what asks for an answer is repeated,
/// what is repeated is answered again, and who knows nothing of a queue pair says that it is over.
///
///     caller                              answerer
///     call (its end, its link's tag)  ->  makes an end, joins it
///     joins its own                   <-  answer (its end; the tag of its link back, if that was calling, too)
///     ready                           ->  stands
///
/// A link back that is wanted later takes the same queue pair: bind (tag) -> bound. If both call at once for links that
/// face each other, the rail with the smaller name is the caller; the other answers with the end it has made.
#include <algorithm>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

namespace {

constexpr std::int64_t kFirstWait = 20'000'000;
constexpr std::int64_t kLongestWait = 500'000'000;
/// Between two questions to a peer whose link uses a queue pair that ours does not.
constexpr std::int64_t kAskEvery = 500'000'000;

std::int64_t wait_after(int tries) { return std::min(kFirstWait << std::min(tries, 10), kLongestWait); }

}  // namespace

void VerbsRail::begin_meeting(Pair& pair, Letter::Kind kind) {
  pair.tries = 0;
  pair.next_letter = SteadyClock().now() + kFirstWait;
  pair.knock = {};
  if (!pair.meets) meeting_.push_back(&pair);
  pair.meets = true;
  write_letter(pair, kind);
}

void VerbsRail::write_letter(Pair& pair, Letter::Kind kind) {
  Letter letter;
  letter.kind = kind;
  letter.from = own_address_;
  letter.here = handle_of(pair);
  letter.there = pair.there;
  if (pair.link) {
    letter.tagged = true;
    letter.tag = links_[*pair.link].tag;
  }
  if (kind == Letter::Kind::call || kind == Letter::Kind::answer) letter.end = end_of(pair);
  (void)office_.send(*pair.peer, letter);
}

void VerbsRail::reply(const Letter& letter, Letter::Kind kind, Letter::Reason reason) {
  auto peer = office_.peer(letter.from, name_);
  if (!peer) return;
  Letter answer;
  answer.kind = kind;
  answer.reason = reason;
  answer.from = own_address_;
  answer.here = letter.there;
  answer.there = letter.here;
  answer.tagged = letter.tagged;
  answer.tag = letter.tag;
  (void)office_.send(**peer, answer);
  lately_[next_lately_++ % lately_.size()] = std::move(*peer);
}

void VerbsRail::write_farewell(std::shared_ptr<Peer> peer, Letter letter) {
  letter.from = own_address_;
  (void)office_.send(*peer, letter);
  farewells_.push_back({std::move(peer), letter, SteadyClock().now() + kFirstWait, 0});
}

void VerbsRail::say_over(Pair& pair) {
  Letter letter;
  letter.kind = Letter::Kind::over;
  letter.here = handle_of(pair);
  letter.there = pair.there;
  if (pair.there != 0) write_farewell(pair.peer, letter);
}

void VerbsRail::read_letter(const Letter& letter) {
  if (letter.from.infiniband != port_.infiniband) return;
  Pair* const pair = find_pair(letter.there);
  const bool ours = pair != nullptr && pair->peer->address.name == letter.from.name;
  switch (letter.kind) {
    case Letter::Kind::call:
      return take_call(letter);
    case Letter::Kind::answer:
      return take_answer(letter);
    case Letter::Kind::refuse:
      return take_refusal(letter);
    case Letter::Kind::gone:
      std::erase_if(farewells_, [&](const Farewell& one) {
        return one.letter.here == letter.there && one.letter.tagged == letter.tagged &&
               one.peer->address.name == letter.from.name;
      });
      return;
    case Letter::Kind::over:
      // A caller that never had our answer never used it: nobody leaves.
      if (ours && pair->state == Pair::State::answering && letter.reason == Letter::Reason::unknown)
        pair->guest.reset();
      if (ours) pair_failed(*pair, kPeerEnded, false);
      return reply(letter, Letter::Kind::gone);
    case Letter::Kind::unbind:
      take_unbind(letter);
      return reply(letter, Letter::Kind::gone);
    default:
      break;
  }
  // The rest is about a queue pair that we should know.
  if (!ours) return reply(letter, Letter::Kind::over, Letter::Reason::unknown);
  switch (letter.kind) {
    case Letter::Kind::ready:
      if (pair->state == Pair::State::answering) pair->state = Pair::State::standing;
      if (pair->state == Pair::State::standing && pair->bound) link_stands(*pair);
      break;
    case Letter::Kind::bind:
      take_bind(letter);
      break;
    case Letter::Kind::bound:
      // Noted for the link it was asked for: a late answer may be of another.
      if (pair->link && pair->state == Pair::State::standing && letter.tagged &&
          letter.tag.id == links_[*pair->link].tag.id && letter.tag.epoch == links_[*pair->link].tag.epoch) {
        pair->bound = true;
        link_stands(*pair);
      }
      break;
    case Letter::Kind::ask:
      reply(letter, Letter::Kind::here);
      break;
    case Letter::Kind::here:
      pair->tries = 0;
      break;
    default:
      break;
  }
}

void VerbsRail::link_stands(Pair& pair) {
  if (!pair.link) return;
  Link& link = links_[*pair.link];
  if (link.state == Link::State::connecting) link.state = Link::State::up;
}

void VerbsRail::take_call(const Letter& letter) {
  if (!letter.tagged) return;
  for (Slot& slot : slots_) {
    Pair* const pair = slot.pair.get();
    if (pair == nullptr || pair->there != letter.here || pair->peer->address.name != letter.from.name) continue;
    if (pair->state == Pair::State::answering) write_letter(*pair, Letter::Kind::answer);
    if (pair->state != Pair::State::calling) return;  // the same call again
  }
  if (!welcome(letter.tag)) return reply(letter, Letter::Kind::refuse, Letter::Reason::unwanted);
  Pair* own = nullptr;
  if (letter.tag.facing != 0 && letter.from.name != own_address_.name) {
    for (Slot& slot : slots_) {
      Pair* const pair = slot.pair.get();
      if (pair == nullptr || pair->state != Pair::State::calling || !pair->link) continue;
      const LinkTag& tag = links_[*pair->link].tag;
      if (tag.id == letter.tag.facing && tag.facing == letter.tag.id && pair->peer->address.name == letter.from.name)
        own = pair;
    }
    if (own != nullptr && own_address_.name < letter.from.name) return;  // it will answer our call
  }
  // The sender has given up the lives before this one.
  if (letter.tag.epoch != 0) close_guests(letter.tag.id, letter.tag.epoch - 1, false);
  if (own == nullptr) {
    auto peer = office_.peer(letter.from, name_);
    auto made = peer ? make_pair(std::move(*peer)) : Result<Pair*>(std::move(peer.error()));
    if (!made) {
      log_warn(in_log(), "a peer's link was not accepted: {}", made.error().text());
      return reply(letter, Letter::Kind::refuse, Letter::Reason::no_room);
    }
    own = *made;
  }
  answer_call(*own, letter);
}

void VerbsRail::answer_call(Pair& pair, const Letter& letter) {
  if (int code = join(pair, letter.end, letter.from)) {
    log_warn(in_log(), "a peer's queue pair cannot be joined: {}", std::strerror(code));
    pair_failed(pair, kErrno + code, false);
    return reply(letter, Letter::Kind::refuse, Letter::Reason::no_room);
  }
  pair.there = letter.here;
  pair.state = Pair::State::answering;
  pair.bound = pair.link.has_value();
  seat_guest(pair, letter.tag);
  begin_meeting(pair, Letter::Kind::answer);
}

void VerbsRail::take_answer(const Letter& letter) {
  Pair* const pair = find_pair(letter.there);
  if (pair == nullptr || pair->peer->address.name != letter.from.name ||
      (pair->there != 0 && pair->there != letter.here))
    return reply(letter, Letter::Kind::over, Letter::Reason::unknown);
  if (pair->state == Pair::State::calling) {
    pair->there = letter.here;
    if (letter.tagged && !welcome(letter.tag)) return pair_failed(*pair, kUnwanted, false);
    if (int code = join(*pair, letter.end, letter.from)) return pair_failed(*pair, kErrno + code, false);
    pair->state = Pair::State::standing;
    pair->bound = true;
    if (letter.tagged) {
      if (letter.tag.epoch != 0) close_guests(letter.tag.id, letter.tag.epoch - 1, false);
      seat_guest(*pair, letter.tag);
    }
    link_stands(*pair);
  }
  write_letter(*pair, Letter::Kind::ready);
}

void VerbsRail::take_bind(const Letter& letter) {
  Pair& pair = *find_pair(letter.there);
  if (pair.state != Pair::State::standing || !letter.tagged) return;  // it will be asked again
  const bool again = pair.guest && pair.guest->id == letter.tag.id && pair.guest->epoch == letter.tag.epoch;
  if (!again) {
    if (!welcome(letter.tag)) return reply(letter, Letter::Kind::refuse, Letter::Reason::unwanted);
    if (letter.tag.epoch != 0) close_guests(letter.tag.id, letter.tag.epoch - 1, false);
    if (pair.state != Pair::State::standing) return reply(letter, Letter::Kind::over);
    seat_guest(pair, letter.tag);
  }
  reply(letter, Letter::Kind::bound);
}

void VerbsRail::take_unbind(const Letter& letter) {
  Pair* const pair = find_pair(letter.there);
  if (pair == nullptr || pair->peer->address.name != letter.from.name || !pair->guest) return;
  if (pair->guest->id != letter.tag.id || pair->guest->epoch != letter.tag.epoch) return;
  if (pair->link) {
    // What it sent has been acknowledged: its completions came before this letter.
    report_left(*pair->guest);
    pair->guest.reset();
    return;
  }
  pair->leaves = pair->guest;
  close_pair(*pair, true);
}

void VerbsRail::take_refusal(const Letter& letter) {
  Pair* const pair = find_pair(letter.there);
  if (pair == nullptr || pair->peer->address.name != letter.from.name || !pair->link) return;
  if (links_[*pair->link].state != Link::State::connecting) return;
  const int why = letter.reason == Letter::Reason::no_room ? kNoRoom : kUnwanted;
  if (pair->guest) {
    // Our link alone is unwanted.
    const RemoteId remote = *pair->link;
    pair->link.reset();
    lose(remote, why, false);
    links_[remote].pair = nullptr;
  } else {
    pair_failed(*pair, why, false);
  }
}

void VerbsRail::look_at_meetings() {
  const std::int64_t now = SteadyClock().now();
  witness_.sweep();
  if (office_.broken()) {
    drain();  // no completion of its old life is to take the room of a new one
    office_.revive();
  }
  for (std::size_t i = 0; i < meeting_.size();) {
    Pair& pair = *meeting_[i];
    const bool settled = pair.state == Pair::State::standing && (!pair.link || pair.bound);
    if (settled) {
      pair.meets = false;
      pair.knock = {};
      pair.tries = 0;
      meeting_[i] = meeting_.back();
      meeting_.pop_back();
      continue;
    }
    if (pair.knock.refused()) {
      pair_failed(pair, kNobodyThere, true);  // takes it out
      continue;
    }
    const std::size_t before = meeting_.size();
    if (now >= pair.next_letter) repeat(pair, now);
    if (meeting_.size() == before) ++i;
  }
  for (Farewell& farewell : farewells_) {
    if (now < farewell.next) continue;
    (void)office_.send(*farewell.peer, farewell.letter);
    farewell.next = now + wait_after(++farewell.tries);
  }
  std::erase_if(farewells_, [](const Farewell& one) { return one.tries > kMostTries / 2; });
  if (now < next_slow_look_) return;
  next_slow_look_ = now + kAskEvery;
  ask_guests();
  look_for_device();
}

void VerbsRail::repeat(Pair& pair, std::int64_t now) {
  if (++pair.tries > kMostTries) return pair_failed(pair, kNoAnswer, false);
  pair.next_letter = now + wait_after(pair.tries);
  if (pair.tries % kKnockEvery == kKnockEvery - 1)
    pair.knock = Knock(ipv4_of(pair.peer->address.gid), pair.peer->address.witness);
  switch (pair.state) {
    case Pair::State::calling:
      return write_letter(pair, Letter::Kind::call);
    case Pair::State::answering:
      return write_letter(pair, Letter::Kind::answer);
    default:
      return write_letter(pair, Letter::Kind::bind);
  }
}

/// A queue pair that we never post to says nothing of its peer's death.
void VerbsRail::ask_guests() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Pair* const pair = slots_[i].pair.get();
    if (pair == nullptr || pair->link || pair->state != Pair::State::standing || pair->meets) continue;
    if (pair->knock.refused() || pair->tries > kMostTries) {
      pair_failed(*pair, kNobodyThere, true);
      continue;
    }
    if (++pair->tries > 1) pair->knock = Knock(ipv4_of(pair->peer->address.gid), pair->peer->address.witness);
    write_letter(*pair, Letter::Kind::ask);
  }
}

}  // namespace railyard::fabric::verbs
