/// Posts and completions.
#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/log.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

Post VerbsRail::refuse_post(const char* operation, RemoteId remote) {
  if (gone_) return fail(operation, kDeviceGone);
  return BaseRail::refuse_post(operation, links_.find(remote), {kDeviceGone, kPeerEnded, IBV_WC_WR_FLUSH_ERR});
}

/// Posts go to that link from now on. False: it takes none.
inline bool VerbsRail::turn_to(RemoteId remote) {
  const VerbsLink* const link = links_.ready(remote);
  if (link == nullptr || link->pair == nullptr) return false;
  if (posting_->holds() && !posting_->waits_to_ring) {
    posting_->waits_to_ring = true;
    posting_->rings_after = to_ring_;
    to_ring_ = posting_;
  }
  posting_ = &link->pair->queue;
  posting_to_ = remote;
  return true;
}

/// No link posts to that queue any more.
void VerbsRail::turn_away(const SendQueue& queue) {
  if (posting_ != &queue) return;
  posting_ = &nowhere_;
  posting_to_ = kNobody;
}

/// Places are granted for a chain at a time, as long as every pair could have that; else one by one.
[[gnu::noinline]] Post VerbsRail::prepare(const char* operation, RemoteId remote, std::uint32_t depth) {
  if (remote != posting_to_ && !turn_to(remote)) return refuse_post(operation, remote);
  SendQueue& queue = *posting_;
  if (queue.has_place()) return Post::posted;
  if (queue.chain_full()) {  // it leaves now, and the others with it
    ring();
    if (remote != posting_to_) return refuse_post(operation, remote);
  }
  const std::uint32_t outstanding = queue.outstanding();
  if (outstanding >= depth) return Post::busy;
  if (queue.grantable() == 0) {
    if (outstanding != 0) return Post::busy;
    queue.renumber();
  }
  if (transmit_room_ == 0) take_back_places();
  if (transmit_room_ == 0) return Post::busy;
  std::uint32_t places = 1;  // what the data lane leaves to messages is not granted ahead
  if (outstanding < data_depth_ && transmit_room_ >= SendQueue::kChain * slots_.size())
    places = std::min(queue.grantable(), data_depth_ - outstanding);
  places_idle_ |= places > 1;
  transmit_room_ -= places;
  queue.grant(places);
  return Post::posted;
}

void VerbsRail::take_back_places() {
  if (!std::exchange(places_idle_, false)) return;
  for (Slot& slot : slots_)
    if (slot.pair) transmit_room_ += slot.pair->queue.take_back();
}

/// A work request for the chunk, to be completed and then posted.
inline ibv_send_wr& VerbsRail::next_work(const LocalChunk& chunk, ibv_wr_opcode opcode, PostContext* context,
                                         Event::Kind kind) {
  SendQueue::WorkRequest& request = posting_->next(context, kind);
  request.work.opcode = opcode;
  request.work.num_sge = 1;
  request.work.send_flags = IBV_SEND_INLINE;
  request.sge.addr = reinterpret_cast<std::uint64_t>(chunk.address);
  request.sge.length = static_cast<std::uint32_t>(chunk.bytes);
  request.sge.lkey = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(chunk.descriptor));
  return request.work;
}

/// The device fetches the bytes, or brings them.
[[gnu::noinline]] Post VerbsRail::by_address(ibv_send_wr& work) {
  work.num_sge = work.sg_list->length != 0 ? 1 : 0;
  work.send_flags = 0;
  return Post::posted;
}

/// The end of a post whose bytes the device may take at once. The processor writes those, and cannot read them in the
/// memory of a GPU.
inline Post VerbsRail::posted(ibv_send_wr& work, const LocalChunk& chunk) {
  posting_->add();
  const bool small = chunk.bytes - 1 < inline_bytes_;  // and some
  if (small && reinterpret_cast<std::uintptr_t>(chunk.descriptor) < kOnDevice) [[likely]]
    return Post::posted;
  return by_address(work);
}

void VerbsRail::not_taken(const SendQueue& queue, int code) {
  log_debug(in_log(), "the device did not take work: {}", std::strerror(code));
  pair_failed(*pair_at(queue.number()), kErrno + code, false);
}

void VerbsRail::ring() {
  if (posting_->holds()) {
    if (const int code = posting_->ring(); code != 0) [[unlikely]]
      not_taken(*posting_, code);
  }
  if (to_ring_ != nullptr) [[unlikely]]
    ring_others();
}

[[gnu::noinline]] void VerbsRail::ring_others() {
  while (to_ring_ != nullptr) {
    SendQueue& queue = *to_ring_;
    to_ring_ = queue.rings_after;
    queue.waits_to_ring = false;
    if (!queue.holds()) continue;
    if (const int code = queue.ring(); code != 0) [[unlikely]]
      not_taken(queue, code);
  }
}

Post VerbsRail::send(RemoteId remote, const LocalChunk& message, PostContext* context) {
  if (!prepared(remote)) [[unlikely]]
    return turn_and_send(remote, message, context);
  ibv_send_wr& work = next_work(message, IBV_WR_SEND, context, Event::Kind::sent);
  return posted(work, message);
}

// Functions of their own, called last: a post that finds all prepared saves no registers for them, nor one that turns.
[[gnu::noinline]] Post VerbsRail::turn_and_send(RemoteId remote, const LocalChunk& message, PostContext* context) {
  return turned_to(remote) ? VerbsRail::send(remote, message, context) : prepare_and_send(remote, message, context);
}

[[gnu::noinline]] Post VerbsRail::prepare_and_send(RemoteId remote, const LocalChunk& message, PostContext* context) {
  const Post answer = prepare("send", remote, depth_);
  return answer == Post::posted ? VerbsRail::send(remote, message, context) : answer;
}

Post VerbsRail::receive(const LocalChunk& buffer, PostContext* context) {
  if (stopped_ || gone_) return fail("receive", kDeviceGone);
  if (receives_ >= receive_room_) return Post::busy;
  ibv_sge sge{reinterpret_cast<std::uint64_t>(buffer.address), static_cast<std::uint32_t>(buffer.bytes),
              static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(buffer.descriptor))};
  ibv_recv_wr request{};
  request.wr_id = reinterpret_cast<std::uint64_t>(context);
  request.sg_list = &sge;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  const int code = ibv_post_srq_recv(shared_receives_.get(), &request, &bad);
  if (code == ENOMEM) return Post::busy;
  if (code != 0) return fail("receive", kErrno + code);
  ++receives_;
  return Post::posted;
}

Post VerbsRail::write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options, PostContext* context) {
  if (!prepared(to.remote)) [[unlikely]]
    return turn_and_write(to, from, options, context);
  ibv_send_wr& work = next_work(from, IBV_WR_RDMA_WRITE, context, Event::Kind::written);
  if (!options.none()) {
    if (options.delivery_complete) [[unlikely]]
      return refuse_delivery();
    if (options.with_immediate) work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    work.imm_data = htobe32(options.immediate);
  }
  work.wr.rdma.remote_addr = to.address;
  work.wr.rdma.rkey = static_cast<std::uint32_t>(to.key);
  return posted(work, from);
}

[[gnu::noinline]] Post VerbsRail::refuse_delivery() {
  return fail("write with delivery completion", kErrno + EOPNOTSUPP);
}

[[gnu::noinline]] Post VerbsRail::turn_and_write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options,
                                                 PostContext* context) {
  return turned_to(to.remote) ? VerbsRail::write(to, from, options, context)
                              : prepare_and_write(to, from, options, context);
}

[[gnu::noinline]] Post VerbsRail::prepare_and_write(const RemoteChunk& to, const LocalChunk& from, WriteOptions options,
                                                    PostContext* context) {
  const Post answer = prepare("write", to.remote, data_depth_);
  return answer == Post::posted ? VerbsRail::write(to, from, options, context) : answer;
}

Post VerbsRail::read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) {
  if (!prepared(from.remote)) {
    if (const Post answer = prepare("read", from.remote, data_depth_); answer != Post::posted) return answer;
  }
  ibv_send_wr& work = next_work(to, IBV_WR_RDMA_READ, context, Event::Kind::read);
  work.wr.rdma.remote_addr = from.address;
  work.wr.rdma.rkey = static_cast<std::uint32_t>(from.key);
  posting_->add();
  return by_address(work);
}

Post VerbsRail::atomic(const RemoteChunk& at, AtomicRequest request, const LocalChunk& result, PostContext* context) {
  if (!prepared(at.remote)) {
    if (const Post answer = prepare("atomic", at.remote, data_depth_); answer != Post::posted) return answer;
  }
  if (!capabilities_.native_atomics) return fail("atomic", kErrno + EOPNOTSUPP);
  if (result.bytes != sizeof(std::uint64_t) || at.address % sizeof(std::uint64_t) != 0)
    return fail("atomic", kErrno + EINVAL);
  const bool swap = request.kind == AtomicRequest::Kind::compare_swap;
  ibv_send_wr& work =
      next_work(result, swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD, context, Event::Kind::read);
  work.wr.atomic.remote_addr = at.address;
  work.wr.atomic.rkey = static_cast<std::uint32_t>(at.key);
  work.wr.atomic.compare_add = swap ? request.compare : request.value;
  work.wr.atomic.swap = request.value;
  posting_->add();
  return by_address(work);
}

std::size_t VerbsRail::poll(std::span<Event> events) {
  if (stopped_ || events.empty()) return 0;
  if (holds_work()) ring();
  if (++turn_ % kSetUpLook == 0) look_around();
  if (flush_.active) [[unlikely]]
    return poll_flushed(events);
  if (gone_ || !pending_.empty() || !closing_.empty()) [[unlikely]]
    return poll_pending(events);
  return read_queue(events);
}

std::size_t VerbsRail::poll_pending(std::span<Event> events) {
  std::size_t count = pending_.take(events);
  if (gone_ || count == events.size()) return count;
  count += read_queue(events.subspan(count));
  if (emptied_ && !closing_.empty()) sweep();
  return count;
}

inline VerbsRail::Pair* VerbsRail::pair_at(std::uint64_t wr_id) const {
  const auto slot = static_cast<std::uint32_t>(wr_id >> kSlotShift) & kSlotMask;
  return slot < slots_.size() ? slots_[slot].pair.get() : nullptr;
}

std::size_t VerbsRail::read_queue(std::span<Event> events) {
  std::array<ibv_wc, kReadBatch> completions;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
  Event* next = events.data();
  Event* const end = next + events.size();
  emptied_ = false;
  for (std::size_t left = events.size(); left != 0; left = static_cast<std::size_t>(end - next)) {
    const int room = static_cast<int>(std::min<std::size_t>(left, kReadBatch));
    const int found = ibv_poll_cq(queue_.get(), room, completions.data());
    if (found < 0) [[unlikely]] {
      log_error(in_log(), "its completion queue failed");
      device_gone();
      break;
    }
    SendQueue* queue = posting_;  // often its own, or that of the completion before
    for (const ibv_wc *one = completions.data(), *const last = one + found; one < last; ++one) {
      if ((one->wr_id & kSend) == 0) {
        next = take_received(*one, next, end);
        continue;
      }
      // One completion speaks for all work requests before it that asked for none.
      if (!queue->is_out(one->wr_id)) {
        Pair* const pair = pair_at(one->wr_id);
        queue = pair != nullptr ? &pair->queue : &nowhere_;
        if (!queue->is_out(one->wr_id)) [[unlikely]] {
          take_other(*one);
          if (gone_) break;
          continue;
        }
      }
      const std::uint32_t before = queue->before(one->wr_id);
      if (one->status == IBV_WC_SUCCESS) [[likely]] {
        next = take_sent(*queue, before + 1, next, end);
        continue;
      }
      next = take_sent(*queue, before, next, end);
      next = take_failed(*pair_at(one->wr_id), *one, next, end);
      if (gone_) break;
    }
    if (found < room) {
      emptied_ = !gone_;
      break;
    }
  }
  return static_cast<std::size_t>(next - events.data());
}

inline Event* VerbsRail::put(const Event& event, Event* next, Event* end) {
  if (next < end) {
    *next = event;
    return next + 1;
  }
  pending_.push(event);
  return next;
}

Event* VerbsRail::take_received(const ibv_wc& completion, Event* next, Event* end) {
  --receives_;
  Event event;
  event.context = reinterpret_cast<PostContext*>(completion.wr_id);
  event.bytes = completion.byte_len;
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
    event.kind = Event::Kind::failed;
    event.error = completion.status;
  } else if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    event.kind = Event::Kind::landed;
    event.immediate = be32toh(completion.imm_data);
  } else {
    event.kind = Event::Kind::received;
  }
  return put(event, next, end);
}

inline Event* VerbsRail::take_sent(SendQueue& queue, std::uint32_t count, Event* next, Event* end) {
  transmit_room_ += count;
  for (; count != 0; --count) {
    const SendQueue::Entry entry = queue.retire();
    if (next < end) [[likely]] {
      next->kind = entry.kind;
      next->context = entry.context;
      ++next;
    } else {
      Event event;
      event.kind = entry.kind;
      event.context = entry.context;
      pending_.push(event);
    }
  }
  return next;
}

/// The first operation that fails names its own fault; what is flushed behind it does not.
static Blame blame_for(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_ACCESS_ERR:
      return Blame::operation;
    default:
      return Blame::link;
  }
}

Event* VerbsRail::take_failed(Pair& pair, const ibv_wc& completion, Event* next, Event* end) {
  ++transmit_room_;
  Event event;
  event.kind = Event::Kind::failed;
  event.context = pair.queue.retire().context;
  event.error = completion.status;
  event.blame = blame_for(completion.status);
  next = put(event, next, end);
  if (completion.status != IBV_WC_WR_FLUSH_ERR)
    log_debug(in_log(), "error completion: {}", describe_error(completion.status));
  if (completion.status == IBV_WC_RETRY_EXC_ERR) peer_liveness_.unacknowledged(pair.peer->address.name);
  pair_failed(pair, completion.status, false);  // a queue pair does not survive a failed operation
  return next;
}

/// A CM message, a flush, or of a queue pair that is no more.
void VerbsRail::take_other(const ibv_wc& completion) {
  if ((completion.wr_id & Flush::kReads) == Flush::kReads) {
    take_flush(completion);
  } else if ((completion.wr_id & ConnectionManager::kArrives) != ConnectionManager::kArrives) {
    ++stale_;
  } else if (const auto datagram = connection_manager_.take(completion)) {
    take_datagram(*datagram);
  }
}

void VerbsRail::drain() {
  std::array<Event, kReadBatch> found;
  for (emptied_ = false; !emptied_ && !gone_;) {
    const std::size_t count = read_queue(found);
    for (std::size_t i = 0; i < count; ++i) pending_.push(found[i]);
  }
}

}  // namespace railyard::fabric::verbs
