/// Receiving: what each arriving record does.
#include <algorithm>
#include <cstring>

#include "endpoint.hpp"

namespace railyard::provider {

namespace {

/// What unexpected messages may hold; beyond it their senders wait.
constexpr std::size_t kMostHeldBytes = std::size_t{1} << 30;

}  // namespace

void Endpoint::progress() {
  if (asleep_) wake_up();
  core_->poll([this](Inbound& from, const Arrival& arrival) { return take(from, arrival); });
  if (busy_.empty()) return;
  for (std::size_t index = 0; index < busy_.size();) {
    Path& path = *busy_[index];
    pump(path);
    if (path.idle()) {
      path.listed = false;
      busy_[index] = busy_.back();
      busy_.pop_back();
    } else {
      ++index;
    }
  }
}

bool Endpoint::fall_asleep() {
  if (!core_ || core_->bell() < 0 || !busy_.empty() || !core_->fall_asleep()) return false;
  asleep_ = true;
  return true;
}
void Endpoint::wake_up() {
  if (asleep_) core_->wake_up();
  asleep_ = false;
}

Source& Endpoint::source_of(Inbound& from) {
  if (from.user != nullptr) [[likely]]
    return *static_cast<Source*>(from.user);
  auto source = std::make_unique<Source>();
  source->in = &from;
  source->address = from.name().empty() ? std::string(kIdentityPrefix) + from.sender().text() : from.name();
  from.user = source.get();
  sources_.push_back(std::move(source));
  return *sources_.back();
}

fi_addr_t Endpoint::number_of(Source& source) {
  Addresses& addresses = *bound_.addresses;
  const std::uint64_t generation = addresses.generation;
  if (source.known_generation != generation) {
    source.number = addresses.number_of(source.address);
    source.known_generation = generation;
  }
  return source.number;
}

bool Endpoint::take(Inbound& from, const Arrival& arrival) {
  Source& source = source_of(from);
  const auto& arguments = arrival.record->arguments;
  switch (arrival.word.kind) {
    case kTagged:
      return take_message(source, arrival, tagged);
    case kMessage:
      return take_message(source, arrival, messages);
    case kWrite:
      return take_write(source, arrival);
    case kRead:
      return take_read(source, arrival);
    case kMore:
      return take_more(source, arrival);
    case kAnswer:
      take_answer(source, arrival);
      return true;
    case kAtomic:
      return take_atomic(source, arrival);
    case kGrant:
      take_grant(source, arguments[0]);
      return true;
    case kDone:
      take_done(source, arguments[0], arguments[1]);
      return true;
    case kRefused:
      take_refused(source, arguments[0], arguments[1]);
      return true;
    default:
      // A kind of a later version: the layout's number keeps those apart, so this is a broken peer. Nothing to do.
      return true;
  }
}

bool Endpoint::take_message(Source& source, const Arrival& arrival, Receives& receives) {
  const std::size_t bytes = arrival.word.bytes;
  if (bytes > Record::kShort) shm::prefetch_for_reading(arrival.payload, std::min(bytes, kPrefetched));
  const std::uint64_t tag = arrival.record->arguments[0];
  Receive* const receive = receives.match(tag, directed_ ? number_of(source) : FI_ADDR_UNSPEC);
  if (receive == nullptr || receive->multi || (arrival.word.flags & (kSeveral | kWantsDone)) != 0)
    return take_message_slowly(source, arrival, receives, receive);
  receives.posted.remove(*receive);
  if (receive->iov.count == 1) {
    shm::copy_bytes(static_cast<std::byte*>(receive->iov.list[0].iov_base), arrival.payload,
                    std::min(bytes, receive->iov.bytes));
  } else {
    receive->iov.scatter(0, arrival.payload, bytes);
  }
  complete_receive(*receive, 0, source, receives, tag, arrival.record->arguments[1],
                   (arrival.word.flags & kHasData) != 0, bytes);
  pool_.receives.give(*receive);
  return true;
}

bool Endpoint::take_message_slowly(Source& source, const Arrival& arrival, Receives& receives, Receive* match) {
  const std::uint8_t flags = arrival.word.flags;
  const std::size_t bytes = arrival.word.bytes;
  const bool several = (flags & kSeveral) != 0;
  const std::size_t total = several ? arrival.record->more[0] : bytes;
  if (total < bytes) return true;  // impossible: the sender is broken, its message is dropped
  if (match == nullptr && pool_.held_bytes + std::min(total, kEager) > kMostHeldBytes) return false;

  Incoming& incoming = pool_.incoming.take();
  incoming = Incoming{};
  incoming.source = &source;
  incoming.receives = &receives;
  incoming.tag = arrival.record->arguments[0];
  incoming.data = arrival.record->arguments[1];
  incoming.has_data = (flags & kHasData) != 0;
  incoming.wants_done = (flags & kWantsDone) != 0;
  incoming.several = several;
  incoming.handle = (flags & (kSeveral | kWantsDone)) != 0 ? arrival.record->more[1] : 0;
  incoming.total = total;
  ++source.held;
  if (several) source.open.push_back(&incoming);
  if (match == nullptr) {
    incoming.bytes.reserve(std::min(total, kEager));
    incoming.bytes.assign(arrival.payload, arrival.payload + bytes);
    pool_.held_bytes += bytes;
    incoming.received = bytes;
    receives.unexpected.push(incoming);
    return true;
  }
  give(incoming, *match);
  match->iov.scatter(incoming.base, arrival.payload, bytes);
  incoming.received = bytes;
  continue_incoming(incoming);
  return true;
}

/// The receive is known: it leaves the posted ones, or a multi receive lends a part of itself.
void Endpoint::give(Incoming& incoming, Receive& receive) {
  incoming.receive = &receive;
  if (!receive.multi) {
    incoming.receives->posted.remove(receive);
    return;
  }
  incoming.base = receive.used;
  receive.used = std::min(receive.used + incoming.total, receive.iov.bytes);
  ++receive.active;
  if (receive.iov.bytes - receive.used < least_multi_receive_) {
    receive.finished = true;
    incoming.receives->posted.remove(receive);
  }
}

/// With a receive: asks for the rest, or ends.
void Endpoint::continue_incoming(Incoming& incoming) {
  if (incoming.whole()) {
    complete(incoming);
  } else if (incoming.total > kEager) {
    control(*incoming.source, kGrant, incoming.handle, 0);
  }
}

void Endpoint::complete(Incoming& incoming) {
  Source& source = *incoming.source;
  if (incoming.wants_done) control(source, kDone, incoming.handle, 0);
  if (incoming.several) std::erase(source.open, &incoming);
  if (incoming.receive != nullptr) {
    Receive& receive = *incoming.receive;
    if (receive.multi) --receive.active;
    complete_receive(receive, incoming.base, source, *incoming.receives, incoming.tag, incoming.data, incoming.has_data,
                     incoming.total);
    if (!receive.multi || (receive.finished && receive.active == 0)) pool_.receives.give(receive);
  }
  --source.held;
  pool_.incoming.give(incoming);
}

void Endpoint::complete_receive(Receive& receive, std::size_t base, Source& source, Receives& receives,
                                std::uint64_t tag, std::uint64_t data, bool has_data, std::size_t total) {
  const std::size_t room = receive.iov.bytes - base;
  const bool last = receive.multi && receive.finished && receive.active == 0;
  std::uint64_t flags = receives.operation;
  if (has_data) flags |= FI_REMOTE_CQ_DATA;
  if (last) flags |= FI_MULTI_RECV;
  void* const buffer = receive.multi ? static_cast<std::byte*>(receive.iov.front()) + base : nullptr;
  if (total > room) [[unlikely]] {
    if (bound_.receive != nullptr) {
      fi_cq_err_entry entry{};
      entry.op_context = receive.context;
      entry.flags = flags;
      entry.len = room;
      entry.buf = buffer;
      entry.data = data;
      entry.tag = tag;
      entry.olen = total - room;
      entry.err = FI_ETRUNC;
      entry.prov_errno = FI_ETRUNC;
      bound_.receive->push_error(entry);
    }
    if (bound_.recv != nullptr) bound_.recv->add_error(1);
    return;
  }
  if (bound_.receive != nullptr && (receive.completes || last))
    bound_.receive->push(
        {receive.context, flags, total, buffer, data, tag, sourced_ ? number_of(source) : FI_ADDR_NOTAVAIL});
  if (bound_.recv != nullptr) bound_.recv->add(1);
}

void Endpoint::fail_receive(Receive& receive, int error, std::uint64_t operation) {
  if (bound_.receive != nullptr) {
    fi_cq_err_entry entry{};
    entry.op_context = receive.context;
    entry.flags = operation;
    entry.tag = receive.tag;
    entry.err = error;
    entry.prov_errno = error;
    bound_.receive->push_error(entry);
  }
  if (bound_.recv != nullptr) bound_.recv->add_error(1);
}

bool Endpoint::take_more(Source& source, const Arrival& arrival) {
  const std::uint64_t handle = arrival.record->arguments[0];
  const std::uint64_t offset = arrival.record->arguments[1];
  const auto it = std::find_if(source.open.begin(), source.open.end(),
                               [handle](const Incoming* incoming) { return incoming->handle == handle; });
  if (it == source.open.end()) return true;
  Incoming& incoming = **it;
  const std::size_t bytes = arrival.word.bytes;
  // Chunks come in order, never more than was announced, and not beyond what was granted.
  if (offset != incoming.received || bytes > incoming.total - incoming.received) return true;
  shm::prefetch_for_reading(arrival.payload, std::min(bytes, kPrefetched));
  if (incoming.receives == nullptr) {
    std::byte* const to = registered(incoming.key, incoming.address, incoming.total, FI_REMOTE_WRITE);
    if (to == nullptr) {
      // Deregistered meanwhile. What else comes of it finds nobody.
      refuse_source(source, incoming.handle, FI_EACCES);
      incoming.wants_done = false;
      complete(incoming);
      return true;
    }
    shm::copy_bytes(to + offset, arrival.payload, bytes);
    incoming.received += bytes;
    if (!incoming.whole()) return true;
    if (!incoming.part) wrote(source, incoming.key, incoming.address, incoming.has_data, incoming.data, incoming.total);
    complete(incoming);
    return true;
  }
  if (incoming.receive != nullptr) {
    const Receive& receive = *incoming.receive;
    receive.iov.scatter(incoming.base + offset, arrival.payload, bytes);
  } else if (!incoming.discarded) {
    if (offset + bytes > kEager) return true;
    incoming.bytes.insert(incoming.bytes.end(), arrival.payload, arrival.payload + bytes);
    pool_.held_bytes += bytes;
  }
  incoming.received += bytes;
  if (incoming.whole() && (incoming.receive != nullptr || incoming.discarded)) complete(incoming);
  return true;
}

void Endpoint::take_answer(const Source& source, const Arrival& arrival) {
  const std::uint64_t offset = arrival.record->arguments[1];
  Transfer* const transfer = find_transfer(source, arrival.record->arguments[0]);
  const std::size_t bytes = arrival.word.bytes;
  if (transfer == nullptr || (transfer->kind != kRead && transfer->kind != kAtomic) || offset != transfer->received ||
      bytes > transfer->total - transfer->received)
    return;
  shm::prefetch_for_reading(arrival.payload, std::min(bytes, kPrefetched));
  transfer->iov.scatter(offset, arrival.payload, bytes);
  transfer->received += bytes;
  if (transfer->received == transfer->total) finish(*transfer, 0);
}

void Endpoint::take_grant(const Source& source, std::uint64_t handle) {
  Transfer* const transfer = find_transfer(source, handle);
  // Only messages are granted anything: of a read or atomic nothing more may go out.
  if (transfer == nullptr || transfer->allowed == transfer->total ||
      (transfer->kind != kMessage && transfer->kind != kTagged) || (transfer->flags & kSeveral) == 0)
    return;
  transfer->allowed = transfer->total;
  Path& path = *transfer->path;
  if (!transfer->queued) {
    transfer->queued = true;
    path.queue.push_back(transfer);
  }
  list_busy(path);
}

void Endpoint::take_done(const Source& source, std::uint64_t handle, std::uint64_t error) {
  Transfer* const transfer = find_transfer(source, handle);
  if (transfer == nullptr || transfer->queued || transfer->kind == kAnswer) return;
  finish(*transfer, static_cast<int>(error & 0xffff));
}

/// A write or atomic of ours that its target did not do. Where it is over for the program already, because it was in
/// the target's ring, an error without a context is all that can be said; silence would be worse.
void Endpoint::take_refused(const Source& source, std::uint64_t handle, std::uint64_t why) {
  const int error = (why & kErrorBits) != 0 ? static_cast<int>(why & kErrorBits) : FI_EIO;
  Transfer* const transfer = find_transfer(source, handle);
  if (transfer == nullptr) {
    late_error((why & kWasAtomic) != 0 ? FI_ATOMIC | FI_WRITE : FI_RMA | FI_WRITE, error);
    return;
  }
  if (transfer->kind != kWrite && transfer->kind != kAtomic) return;
  if (transfer->queued) std::erase(transfer->path->queue, transfer);
  transfer->queued = false;
  finish(*transfer, error);
}

void Endpoint::discard(Incoming& incoming) {
  pool_.held_bytes -= incoming.bytes.size();
  incoming.bytes = {};
  if (incoming.aborted) {
    abort(incoming);
    return;
  }
  if (incoming.whole()) {
    complete(incoming);
    return;
  }
  incoming.discarded = true;
  continue_incoming(incoming);
}

ssize_t Endpoint::receive(Receives& receives, const IoVector& to, fi_addr_t named_sender, std::uint64_t tag,
                          std::uint64_t ignore, void* context, std::uint64_t flags) {
  // A program that did not ask for directed receives may pass anything.
  const fi_addr_t from = directed_ ? named_sender : FI_ADDR_UNSPEC;
  if ((flags & (FI_PEEK | FI_CLAIM)) != 0) {
    claim_or_peek(receives, to, from, tag, ignore, context, flags);
    return 0;
  }
  Receive& receive = pool_.receives.take();
  receive.iov = to;
  receive.tag = tag;
  receive.ignore = ignore;
  receive.from = from;
  receive.context = context;
  receive.completes = !bound_.receive_selective || (flags & FI_COMPLETION) != 0;
  receive.multi = (flags & FI_MULTI_RECV) != 0;
  receive.finished = false;
  receive.used = 0;
  receive.active = 0;
  receives.posted.push(receive);
  if (!receives.unexpected.empty()) [[unlikely]]
    take_unexpected(receives, receive);
  return 0;
}

/// Messages that came before their receive.
void Endpoint::take_unexpected(Receives& receives, Receive& receive) {
  bool goes_on = true;
  while (goes_on) {
    Incoming* const found = receives.oldest_for(receive, [&](const Incoming& incoming) {
      return Receives::matches(receive, incoming.tag, number_of(*incoming.source));
    });
    if (found == nullptr) return;
    receives.unexpected.remove(*found);
    give(*found, receive);
    // After this a receive that takes no more may be gone.
    goes_on = receive.multi && !receive.finished;
    hand_over(*found);
  }
}

/// What was held goes to the receive that was just found for it.
void Endpoint::hand_over(Incoming& incoming) {
  incoming.receive->iov.scatter(incoming.base, incoming.bytes.data(), incoming.bytes.size());
  pool_.held_bytes -= incoming.bytes.size();
  incoming.bytes.clear();
  if (incoming.aborted) {
    abort(incoming);
  } else {
    continue_incoming(incoming);
  }
}

void Endpoint::claim_or_peek(Receives& receives, const IoVector& to, fi_addr_t from, std::uint64_t tag,
                             std::uint64_t ignore, void* context, std::uint64_t flags) {
  progress();
  Receive wanted;
  wanted.iov = to;
  wanted.tag = tag;
  wanted.ignore = ignore;
  wanted.from = from;
  wanted.context = context;
  const bool peek = (flags & FI_PEEK) != 0;
  Incoming* found = nullptr;
  if (peek) {
    found = receives.oldest_for(wanted, [&](const Incoming& incoming) {
      return Receives::matches(wanted, incoming.tag, number_of(*incoming.source));
    });
  } else if (const auto it = receives.claimed.find(context); it != receives.claimed.end()) {
    found = it->second;
    receives.claimed.erase(it);
  }
  if (found == nullptr) {
    fail_receive(wanted, FI_ENOMSG, receives.operation);
    return;
  }
  // What is claimed has left the others: no receive finds it but its own.
  if (peek && (flags & (FI_DISCARD | FI_CLAIM)) != 0) receives.unexpected.remove(*found);
  if (peek || (flags & FI_DISCARD) != 0) {
    if (bound_.receive != nullptr)
      bound_.receive->push({context, receives.operation | (found->has_data ? FI_REMOTE_CQ_DATA : 0), found->total,
                            nullptr, found->data, found->tag, number_of(*found->source)});
    if ((flags & FI_DISCARD) != 0) {
      discard(*found);
    } else if ((flags & FI_CLAIM) != 0) {
      receives.claimed.emplace(context, found);
    }
    return;
  }
  Receive& receive = pool_.receives.take();
  receive = wanted;
  receive.completes = true;
  found->receive = &receive;
  hand_over(*found);
}

}  // namespace railyard::provider
