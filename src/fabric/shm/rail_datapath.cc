/// Posts, and what moves on inside `poll`. Short operations allocate nothing and make no system call.
#include <algorithm>
#include <utility>

#include "fabric/shm/rail.hpp"

namespace railyard::fabric::shm {

namespace {

/// What one post or one poll puts into a ring: less than the peer frees at once, so that a message finds room too.
std::size_t share_of(const Outbound& out) { return out.most_payload() / 2; }
std::size_t chunk_of(const Outbound& out) { return std::min(kMostChunk, out.most_payload() / 4); }

}  // namespace

// ---- Events ----

/// Straight to the caller of a running poll, unless others come first.
void ShmRail::tell(const Event& event) {
  if (told_ < room_.size() && pending_.empty())
    room_[told_++] = event;
  else
    pending_.push(event);
}

void ShmRail::tell_done(Event::Kind kind, PostContext* context, std::size_t bytes) {
  Event event;
  event.kind = kind;
  event.context = context;
  event.bytes = bytes;
  tell(event);
}

void ShmRail::tell_failed(PostContext* context, int error) {
  Event event;
  event.context = context;
  event.error = error;
  // The target has no such memory, or no way to this one: sent again it would be refused again.
  if (error == kBadKey || error == kTooLong || error == kNotMapped || error == kDeviceError)
    event.blame = Blame::operation;
  tell(event);
}

// ---- Operations that are not done at once ----

ShmRail::Operation* ShmRail::take_operation(Operation::Kind kind, RemoteId link, const LocalChunk& local,
                                            const RemoteChunk& remote, PostContext* context) {
  if (links_[link]->waiting >= kDepth) return nullptr;
  if (free_operations_.empty()) {
    free_operations_.push_back(static_cast<std::uint32_t>(operations_.size()));
    operations_.emplace_back().index = free_operations_.back();
  }
  Operation& operation = operations_[free_operations_.back()];
  free_operations_.pop_back();
  ++links_[link]->waiting;
  operation.kind = kind;
  operation.link = link;
  operation.context = context;
  operation.local = static_cast<std::byte*>(local.address);
  operation.bytes = local.bytes;
  operation.moved = 0;
  operation.remote = remote;
  operation.options = {};
  operation.ended = false;
  operation.copying = 0;
  operation.device = static_cast<DeviceMemory*>(local.descriptor);
  return &operation;
}

std::uint64_t ShmRail::handle_of(const Operation& operation) {
  return std::uint64_t{operation.use} << 32U | operation.index;
}

/// What a peer's answer is about: handles come from outside.
ShmRail::Operation* ShmRail::find(const Peer& peer, std::uint64_t handle) {
  const auto index = static_cast<std::uint32_t>(handle);
  if (index >= operations_.size()) return nullptr;
  Operation& operation = operations_[index];
  if (operation.kind == Operation::Kind::free || operation.ended || operation.use != handle >> 32U) return nullptr;
  return links_[operation.link]->peer == &peer ? &operation : nullptr;
}

void ShmRail::release(Operation& operation) {
  operation.kind = Operation::Kind::free;
  ++operation.use;
  if (!operation.ended) --links_[operation.link]->waiting;
  free_operations_.push_back(operation.index);
}

void ShmRail::complete(Operation& operation, Event::Kind kind) {
  tell_done(kind, operation.context, operation.bytes);
  release(operation);
}

void ShmRail::fail_operation(Operation& operation, int error) {
  tell_failed(operation.context, error);
  release(operation);
}

/// Its link has gone. It says so when nothing touches its memory any more.
void ShmRail::end(Operation& operation) {
  if (operation.copying == 0) return fail_operation(operation, kEnded);
  --links_[operation.link]->waiting;
  operation.ended = true;
}

// ---- Posts ----

/// Why a link takes no posts now.
Post ShmRail::refuse(const char* operation, RemoteId remote) {
  return refuse_post(operation, links_.find(remote), {kStopped, kEnded, kPeerGone});
}

Post ShmRail::send(RemoteId remote, const LocalChunk& message, PostContext* context) {
  const ShmLink* const link = links_.ready(remote);
  if (link == nullptr) return refuse("send", remote);
  if (message.bytes > kMostMessage) return fail("send", kTooLong);
  if (pending_.size() >= kDepth) return Post::busy;
  Outbound& out = *link->peer->out;
  const auto* const bytes = static_cast<const std::byte*>(message.address);
  const auto length = static_cast<std::uint32_t>(message.bytes);
  if (message.bytes <= Record::kShort) {
    Record* const record = out.reserve_line();
    if (record == nullptr) return Post::busy;
    record->arguments[0] = link->number();
    copy_bytes(record->payload.data(), bytes, message.bytes);
    out.publish({length, kMessage, Word::kInFirst});
  } else {
    const Reservation room = out.reserve(message.bytes);
    if (room.record == nullptr) return Post::busy;
    room.record->arguments[0] = link->number();
    out.write(room.payload, bytes, message.bytes);
    out.publish({length, kMessage, 0});
  }
  tell_done(Event::Kind::sent, context, message.bytes);
  return Post::posted;
}

Post ShmRail::receive(const LocalChunk& buffer, PostContext* context) {
  if (stopped_) return fail("receive", kStopped);
  if (receive_count_ == kDepth) return Post::busy;
  receives_[(first_receive_ + receive_count_++) % kDepth] = {buffer, context};
  return Post::posted;
}

Post ShmRail::write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) {
  ShmLink* const link = links_.ready(to.remote);
  if (link == nullptr) return refuse("write", to.remote);
  if (from.bytes > kMostWrite) return fail("write", kTooLong);
  if (pending_.size() >= kDepth) return Post::busy;
  Outbound& out = *link->peer->out;
  if (!options.delivery_complete && from.descriptor == nullptr && from.bytes <= chunk_of(out)) {
    const auto* const bytes = static_cast<const std::byte*>(from.address);
    if (!put_chunk(out, link->number(), to, {bytes, from.bytes}, 0, options, true)) return Post::busy;
    tell_done(Event::Kind::written, context, from.bytes);
    return Post::posted;
  }
  return write_long(*link, to, from, options, context);
}

Post ShmRail::write_long(ShmLink& link, const RemoteChunk& to, const LocalChunk& from, WriteOptions options,
                         PostContext* context) {
  const bool on_device = from.descriptor != nullptr;
  if (on_device && !link.read_by_peer) return fail("write", kNotMapped);
  const bool pull = on_device || (link.read_by_peer && from.bytes >= options_.single_copy_from);
  Operation* const operation =
      take_operation(pull ? Operation::Kind::pull : Operation::Kind::write, to.remote, from, to, context);
  if (operation == nullptr) return Post::busy;
  operation->options = options;
  begin(*link.peer, *operation);
  return Post::posted;
}

Post ShmRail::read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) {
  ShmLink* const link = links_.ready(from.remote);
  if (link == nullptr) return refuse("read", from.remote);
  if (to.bytes > kMostWrite) return fail("read", kTooLong);
  Peer& peer = *link->peer;
  const bool own = peer.memory.readable() && to.descriptor == nullptr && to.bytes >= options_.single_copy_from;
  Operation* const operation =
      take_operation(own ? Operation::Kind::own_read : Operation::Kind::fetch, from.remote, to, from, context);
  if (operation == nullptr) return Post::busy;
  begin(peer, *operation);
  return Post::posted;
}

/// In turn with those that wait already.
void ShmRail::begin(Peer& peer, Operation& operation) {
  std::size_t budget = share_of(*peer.out);
  std::size_t copied = kSlice;  // what takes long is left to poll
  if (!peer.moving.empty() || !move(peer, operation, budget, copied)) queue(peer, operation);
}

// ---- Records ----

/// What an operation asks of the peer.
ShmRail::Control ShmRail::request_of(const Operation& operation) const {
  const std::uint64_t number = links_[operation.link]->number();
  const RemoteChunk& remote = operation.remote;
  const std::uint64_t handle = handle_of(operation);
  if (operation.kind != Operation::Kind::pull) {
    const RailKind kind = operation.kind == Operation::Kind::fetch ? kRead : kCheck;
    return {kind, 0, {number, remote.key}, {remote.address, handle, operation.bytes}};
  }
  unsigned flags = operation.options.with_immediate ? kImmediate : 0U;
  std::uint64_t source = reinterpret_cast<std::uintptr_t>(operation.local);
  if (operation.device != nullptr) {
    flags |= kFromDevice;
    source = DeviceLocation::pack(operation.device->share, source - operation.device->allocation.base);
  }
  return {kPull,
          static_cast<std::uint8_t>(flags),
          {number, remote.key},
          {remote.address, handle, std::uint64_t{operation.bytes} << 32U | operation.options.immediate, source}};
}

bool ShmRail::put_chunk(Outbound& out, std::uint64_t number, const RemoteChunk& to, std::span<const std::byte> bytes,
                        std::uint64_t handle, const WriteOptions& options, bool last) {
  const Reservation room = out.reserve(bytes.size());
  if (room.record == nullptr) return false;
  room.record->arguments = {number, to.key};
  room.record->more[0] = to.address;
  room.record->more[1] = handle;
  room.record->more[2] = options.immediate;
  out.write(room.payload, bytes.data(), bytes.size());
  const unsigned flags = (last ? kLast : 0U) | (options.with_immediate ? kImmediate : 0U);
  out.publish({static_cast<std::uint32_t>(bytes.size()), kWrite, static_cast<std::uint8_t>(flags)});
  return true;
}

bool ShmRail::put_control(Outbound& out, const Control& control) {
  Record* const record = out.reserve_line();
  if (record == nullptr) return false;
  record->arguments = control.arguments;
  std::copy(control.more.begin(), control.more.end(), record->more.begin());
  out.publish({0, control.kind, control.flags});
  return true;
}

/// Says it now, or as soon as there is room, in any case before what is owed later.
void ShmRail::owe(Peer& peer, const Control& control) {
  if (peer.out == nullptr) return;  // nobody to say it to
  if (peer.owed.empty() && put_control(*peer.out, control)) return;
  peer.owed.push_back(control);
  list(peer);
}

// ---- What moves on in poll ----

std::size_t ShmRail::poll(std::span<Event> events) {
  if (stopped_ || events.empty()) return 0;
  if (armed_) [[unlikely]] {
    armed_ = false;
    core_->wake_up(false);
  }
  room_ = events;
  told_ = pending_.empty() ? 0 : pending_.take(events);
  if (told_ < events.size()) {
    core_->poll([this](Inbound& from, const Arrival& arrival) { return take(from, arrival); });
    if (!copying_.empty()) finish_copies();
    if (!busy_.empty()) move_on();
    if (++turn_ % kPollsPerLook == 0) look_at_rings();
  }
  room_ = {};
  return told_;
}

void ShmRail::list(Peer& peer) {
  if (std::exchange(peer.busy, true)) return;
  busy_.push_back(&peer);
}

void ShmRail::queue(Peer& peer, const Operation& operation) {
  peer.moving.push_back(operation.index);
  list(peer);
}

void ShmRail::move_on() {
  const std::size_t turns = std::min(busy_.size(), kPeersPerPoll);
  for (std::size_t turn = 0; turn < turns; ++turn) {
    Peer& peer = *busy_.front();
    busy_.erase(busy_.begin());
    move(peer);
    peer.busy = !peer.owed.empty() || !peer.moving.empty() || !peer.jobs.empty();
    if (peer.busy) busy_.push_back(&peer);
  }
}

void ShmRail::move(Peer& peer) {
  if (peer.out == nullptr) {
    peer.jobs.clear();
    return;
  }
  while (!peer.owed.empty() && put_control(*peer.out, peer.owed.front())) peer.owed.pop_front();
  if (!peer.owed.empty()) return;
  std::size_t budget = share_of(*peer.out);
  std::size_t copied = 0;
  while (!peer.moving.empty() && move(peer, operations_[peer.moving.front()], budget, copied)) peer.moving.pop_front();
  copied = 0;
  while (!peer.jobs.empty() && do_job(peer, peer.jobs.front(), budget, copied)) peer.jobs.pop_front();
}

/// True when it has nothing to move any more.
bool ShmRail::move(Peer& peer, Operation& operation, std::size_t& budget, std::size_t& copied) {
  switch (operation.kind) {
    case Operation::Kind::write:
      return move_write(peer, operation, budget);
    case Operation::Kind::own_read:
      return move_own_read(peer, operation, copied);
    case Operation::Kind::device_read:
      return move_device_read(peer, operation);
    default:
      if (operation.kind == Operation::Kind::pull && operation.device != nullptr) {
        Trouble trouble = kNoTrouble;
        if (!tell_share(peer, *operation.device, trouble)) {
          if (trouble == kNoTrouble) return false;
          fail_operation(operation, trouble);
          return true;
        }
      }
      return put_control(*peer.out, request_of(operation));
  }
}

bool ShmRail::move_write(Peer& peer, Operation& operation, std::size_t& budget) {
  const std::uint64_t number = links_[operation.link]->number();
  const std::uint64_t handle = operation.options.delivery_complete ? handle_of(operation) : 0;
  const std::size_t most = chunk_of(*peer.out);
  for (bool last = false; !last;) {
    const std::size_t rest = operation.bytes - operation.moved;
    const std::size_t bytes = std::min(rest, most);
    last = bytes == rest;
    if (budget < bytes) return false;
    RemoteChunk to = operation.remote;
    to.address += operation.moved;
    if (!put_chunk(*peer.out, number, to, {operation.local + operation.moved, bytes}, handle, operation.options, last))
      return false;
    operation.moved += bytes;
    budget -= bytes;
  }
  if (handle == 0) complete(operation, Event::Kind::written);
  return true;
}

/// The bytes first, the question whether they were the right ones afterwards: a key that is good then was good all the
/// time, for it is never given twice.
bool ShmRail::move_own_read(Peer& peer, Operation& operation, std::size_t& copied) {
  const std::size_t bytes = std::min(operation.bytes - operation.moved, kSlice - copied);
  if (bytes == 0) return false;
  if (!peer.memory.read({operation.local + operation.moved, bytes}, operation.remote.address + operation.moved)) {
    operation.kind = Operation::Kind::fetch;  // what it may not read itself it asks for
    operation.moved = 0;
  } else {
    operation.moved += bytes;
    copied += bytes;
    bytes_copied_once_ += bytes;
    if (operation.moved < operation.bytes) return false;
  }
  owe(peer, request_of(operation));
  return true;
}

bool ShmRail::do_job(Peer& peer, Job& job, std::size_t& budget, std::size_t& copied) {
  // Looked up for every slice: the memory may have been deregistered since.
  const Registrations::Found found = registrations_.find(job.key, job.address, job.bytes);
  if (!found) {
    owe(peer, {kDone, 0, {job.handle, kBadKey}, {}});
    return true;
  }
  if (found.on_device() || job.from_device) return do_device_job(peer, job, found);
  return job.pull ? do_pull(peer, job, found.memory, copied) : do_answer(peer, job, found.memory, budget);
}

bool ShmRail::do_pull(Peer& peer, Job& job, std::byte* memory, std::size_t& copied) {
  const std::size_t bytes = std::min(job.bytes - job.moved, kSlice - copied);
  if (bytes == 0 && job.bytes != 0) return false;
  if (!peer.memory.read({memory + job.moved, bytes}, job.source + job.moved)) {
    owe(peer, {kDone, 0, {job.handle, kUnreadable}, {}});
    return true;
  }
  job.moved += bytes;
  copied += bytes;
  bytes_copied_once_ += bytes;
  if (job.moved < job.bytes) return false;
  if (!guard_holds(peer, job.number)) return true;  // its sender has given it up, and knows
  land(job.bytes, job.immediate_wanted, job.immediate);
  owe(peer, {kDone, 0, {job.handle, kNoTrouble}, {}});
  return true;
}

/// Whether the link was alive after all that was read so far. The fence keeps the look at the guard behind the reads:
/// a sender takes the guard away before it lets anybody touch the memory.
bool ShmRail::guard_holds(Peer& peer, std::uint64_t number) {
  const ShmInboundLink* const inbound_link = inbound_link_of(peer, number);
  std::uint64_t word = 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return inbound_link != nullptr && inbound_link->guard != 0 &&
         peer.memory.read(std::as_writable_bytes(std::span(&word, 1)), inbound_link->guard_address) &&
         word == inbound_link->guard;
}

bool ShmRail::do_answer(Peer& peer, Job& job, const std::byte* memory, std::size_t& budget) {
  const std::size_t most = chunk_of(*peer.out);
  do {
    const std::size_t bytes = std::min(job.bytes - job.moved, most);
    if (budget < bytes) return false;
    const Reservation room = peer.out->reserve(bytes);
    if (room.record == nullptr) return false;
    room.record->arguments = {job.handle, job.moved};
    peer.out->write(room.payload, memory + job.moved, bytes);
    peer.out->publish({static_cast<std::uint32_t>(bytes), kAnswer, 0});
    job.moved += bytes;
    one_sided_.read += bytes;
    budget -= bytes;
  } while (job.moved < job.bytes);
  return true;
}

}  // namespace railyard::fabric::shm
