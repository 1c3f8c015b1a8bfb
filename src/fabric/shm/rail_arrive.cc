/// What each arriving record does. Everything in it was written by another process: numbers, handles and keys are
/// looked up, lengths compared, before they mean anything.
#include <algorithm>

#include "fabric/shm/rail.hpp"

namespace railyard::fabric::shm {

namespace {

/// How much of a payload is asked for at once before it is copied.
constexpr std::size_t kPrefetched = 2048;

}  // namespace

/// False: it stays in the ring, and its sender's ring waits.
bool ShmRail::take(Inbound& from, const Arrival& arrival) {
  Peer& peer = peer_of(from);
  if (pending_.size() >= kDepth || peer.owed.size() >= kMostOwed) return false;
  const Record& record = *arrival.record;
  switch (arrival.word.kind) {
    case kMessage:
      return take_message(peer, arrival);
    case kWrite:
      return take_write(peer, arrival);
    case kPull:
    case kRead:
      take_job(peer, arrival);
      return true;
    case kAnswer:
      return take_answer(peer, arrival);
    case kDone:
      take_done(peer, record);
      return true;
    case kCheck:
      take_check(peer, record);
      return true;
    case kShare:
      take_share(peer, arrival);
      return true;
    case kUnshare:
      take_unshare(peer, record);
      return true;
    case kAnswerShare:
      take_answer_share(peer, record);
      return true;
    case kHello:
      take_hello(peer, record);
      return true;
    case kWelcome:
      take_welcome(peer, record);
      return true;
    case kShut:
      take_shut(peer, record);
      return true;
    case kBye:
      take_bye(peer, record);
      return true;
    default:
      return true;  // of a rail that speaks another version: its links never stood
  }
}

ShmRail::ShmInboundLink* ShmRail::inbound_link_of(Peer& peer, std::uint64_t number) {
  for (const auto& inbound_link : peer.inbound_links)
    if (inbound_link->number == number) return inbound_link.get();
  return nullptr;
}

ShmRail::ShmLink* ShmRail::own_link(const Peer& peer, std::uint64_t number) {
  ShmLink* const link = links_.find(static_cast<RemoteId>(number));
  return link != nullptr && link->number() == number && link->peer == &peer ? link : nullptr;
}

bool ShmRail::take_message(Peer& peer, const Arrival& arrival) {
  const std::size_t bytes = arrival.word.bytes;
  if (bytes > Record::kShort) prefetch_for_reading(arrival.payload, std::min(bytes, kPrefetched));
  if (inbound_link_of(peer, arrival.record->arguments[0]) == nullptr) return true;  // shut out: never happened
  if (receive_count_ == 0) return false;
  const Receive receive = receives_[first_receive_];
  first_receive_ = (first_receive_ + 1) % kDepth;
  --receive_count_;
  if (bytes > receive.buffer.bytes) {
    tell_failed(receive.context, kTooLong);
    return true;
  }
  copy_bytes(static_cast<std::byte*>(receive.buffer.address), arrival.payload, bytes);
  tell_done(Event::Kind::received, receive.context, bytes);
  return true;
}

void ShmRail::land(std::size_t bytes, bool with_immediate, std::uint32_t immediate) {
  if (!with_immediate) {
    one_sided_.written += bytes;
    return;
  }
  Event event;
  event.kind = Event::Kind::landed;
  event.immediate = immediate;
  event.bytes = bytes;
  tell(event);
}

/// False: it takes device memory, and every buffer on the way there is in use.
bool ShmRail::take_write(Peer& peer, const Arrival& arrival) {
  const Record& record = *arrival.record;
  const std::uint64_t number = record.arguments[0];
  ShmInboundLink* const inbound_link = inbound_link_of(peer, number);
  if (inbound_link == nullptr) return true;
  const std::uint64_t handle = record.more[1];
  const std::size_t bytes = arrival.word.bytes;
  const bool last = (arrival.word.flags & kLast) != 0;
  const Registrations::Found to = registrations_.find(record.arguments[1], record.more[0], bytes);
  if (to.on_device() && !inbound_link->bad_write) return write_from_ring(peer, *inbound_link, arrival, to);
  if (to) {
    prefetch_for_reading(arrival.payload, std::min(bytes, kPrefetched));
    copy_bytes(to.memory, arrival.payload, bytes);
    inbound_link->landing += bytes;
  } else if (handle == 0) {
    // Its sender has been told that it is done: only the end of the link can tell it otherwise.
    shut(*inbound_link, kBadKey);
    return true;
  } else {
    inbound_link->bad_write = true;
  }
  if (!last) return true;
  const bool good = !std::exchange(inbound_link->bad_write, false);
  const std::size_t landed = std::exchange(inbound_link->landing, 0);
  if (good) land(landed, (arrival.word.flags & kImmediate) != 0, static_cast<std::uint32_t>(record.more[2]));
  if (handle != 0) owe(peer, {kDone, 0, {handle, static_cast<std::uint64_t>(good ? kNoTrouble : kBadKey)}, {}});
  return true;
}

void ShmRail::take_job(Peer& peer, const Arrival& arrival) {
  const Record& record = *arrival.record;
  const std::uint64_t number = record.arguments[0];
  ShmInboundLink* const inbound_link = inbound_link_of(peer, number);
  if (inbound_link == nullptr) return;
  if (peer.jobs.size() >= kMostOwed) return shut(*inbound_link, kTooMany);
  Job job;
  job.pull = arrival.word.kind == kPull;
  job.number = number;
  job.key = record.arguments[1];
  job.address = record.more[0];
  job.handle = record.more[1];
  if (job.pull) {
    job.immediate_wanted = (arrival.word.flags & kImmediate) != 0;
    job.from_device = (arrival.word.flags & kFromDevice) != 0;
    job.immediate = static_cast<std::uint32_t>(record.more[2]);
    job.source = record.more[3];
    job.bytes = record.more[2] >> 32U;
  } else {
    job.bytes = record.more[2];
  }
  peer.jobs.push_back(job);
  list(peer);
}

void ShmRail::take_check(Peer& peer, const Record& record) {
  if (inbound_link_of(peer, record.arguments[0]) == nullptr) return;
  const bool good = static_cast<bool>(registrations_.find(record.arguments[1], record.more[0], record.more[2]));
  if (good) one_sided_.read += record.more[2];
  owe(peer, {kDone, 0, {record.more[1], static_cast<std::uint64_t>(good ? kNoTrouble : kBadKey)}, {}});
}

void ShmRail::take_welcome(Peer& peer, const Record& record) {
  ShmLink* const link = own_link(peer, record.arguments[0]);
  if (link == nullptr || !link->connecting()) return;
  links_.stands(*link);
  link->read_by_peer = record.arguments[1] != 0;
  tell_shares(peer);
}

void ShmRail::take_shut(Peer& peer, const Record& record) {
  if (ShmLink* const link = own_link(peer, record.arguments[0])) lose(*link, static_cast<int>(record.arguments[1]));
}

bool ShmRail::take_answer(Peer& peer, const Arrival& arrival) {
  Operation* const operation = find(peer, arrival.record->arguments[0]);
  if (operation == nullptr || operation->kind != Operation::Kind::fetch) return true;
  const std::size_t bytes = arrival.word.bytes;
  if (arrival.record->arguments[1] != operation->moved || bytes > operation->bytes - operation->moved) return true;
  if (operation->device != nullptr) return answer_from_ring(*operation, arrival);
  prefetch_for_reading(arrival.payload, std::min(bytes, kPrefetched));
  copy_bytes(operation->local + operation->moved, arrival.payload, bytes);
  operation->moved += bytes;
  if (operation->moved == operation->bytes) complete(*operation, Event::Kind::read);
  return true;
}

void ShmRail::take_done(Peer& peer, const Record& record) {
  Operation* const operation = find(peer, record.arguments[0]);
  if (operation == nullptr) return;
  const auto trouble = static_cast<int>(record.arguments[1]);
  // Half of it may not have been said yet: a peer that answers too early is not believed.
  if (std::find(peer.moving.begin(), peer.moving.end(), operation->index) != peer.moving.end()) return;
  switch (operation->kind) {
    case Operation::Kind::pull:
      if (trouble == kUnreadable && operation->device == nullptr) return send_after_all(peer, *operation);
      [[fallthrough]];
    case Operation::Kind::write:
      return trouble == kNoTrouble ? complete(*operation, Event::Kind::written) : fail_operation(*operation, trouble);
    case Operation::Kind::device_read:
      if (operation->copying != 0 || operation->moved != operation->bytes) return;  // nobody was asked yet
      [[fallthrough]];
    case Operation::Kind::own_read:
      return trouble == kNoTrouble ? complete(*operation, Event::Kind::read) : fail_operation(*operation, trouble);
    case Operation::Kind::fetch:
      if (trouble != kNoTrouble) fail_operation(*operation, trouble);
      return;
    case Operation::Kind::free:
      return;
  }
}

/// The peer may read this process's memory no more, or not this part of it: the bytes go through the ring.
void ShmRail::send_after_all(Peer& peer, Operation& operation) {
  links_[operation.link]->read_by_peer = false;
  operation.kind = Operation::Kind::write;
  operation.moved = 0;
  queue(peer, operation);
}

}  // namespace railyard::fabric::shm
