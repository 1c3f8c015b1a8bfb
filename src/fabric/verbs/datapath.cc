/// Posts and completions.
#include <algorithm>
#include <array>
#include <cerrno>

#include "base/log.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

Post VerbsRail::refuse_post(const char* operation, RemoteId remote) {
  if (gone_) return fail(operation, kDeviceGone);
  return BaseRail::refuse_post(operation, links_.find(remote), {kDeviceGone, kPeerEnded, IBV_WC_WR_FLUSH_ERR});
}

/// `copies`: the device takes small bytes at once.
inline ibv_send_wr& VerbsRail::add(Pair& pair, const LocalChunk& chunk, PostContext* context, Event::Kind kind,
                                   bool copies) {
  if (!pair.queue.holds()) {
    pair.rings_after = to_ring_;
    to_ring_ = &pair;
  }
  --transmit_room_;
  const auto descriptor = reinterpret_cast<std::uintptr_t>(chunk.descriptor);
  SendQueue::WorkRequest& request = pair.queue.add(context, kind);
  request.sge.addr = reinterpret_cast<std::uint64_t>(chunk.address);
  request.sge.length = static_cast<std::uint32_t>(chunk.bytes);
  request.sge.lkey = static_cast<std::uint32_t>(descriptor);
  request.work.num_sge = chunk.bytes != 0 ? 1 : 0;
  // The processor writes inline bytes, and cannot read them in the memory of a GPU.
  request.work.send_flags = copies && chunk.bytes <= inline_bytes_ && descriptor < kOnDevice ? IBV_SEND_INLINE : 0;
  return request.work;
}

/// A full chain leaves at once, and the others with it; a shorter one with the next `ring`.
inline Post VerbsRail::posted(const Pair& pair) {
  if (pair.queue.chain_full()) [[unlikely]]
    ring();
  return Post::posted;
}

void VerbsRail::not_taken(Pair& pair, int code) {
  log_debug(in_log(), "the device did not take work: {}", std::strerror(code));
  pair_failed(pair, kErrno + code, false);
}

void VerbsRail::ring() {
  while (to_ring_ != nullptr) {
    Pair& pair = *to_ring_;
    to_ring_ = pair.rings_after;
    if (const int code = pair.queue.ring(); code != 0) [[unlikely]]
      not_taken(pair, code);
  }
}

Post VerbsRail::send(RemoteId remote, const LocalChunk& message, PostContext* context) {
  Pair* const pair = ready_pair(remote);
  if (pair == nullptr) return refuse_post("send", remote);
  if (!has_room(*pair, depth_)) return Post::busy;
  add(*pair, message, context, Event::Kind::sent, true).opcode = IBV_WR_SEND;
  return posted(*pair);
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
  Pair* const pair = ready_pair(to.remote);
  if (pair == nullptr) return refuse_post("write", to.remote);
  if (!has_room(*pair, data_depth_)) return Post::busy;
  if (options.delivery_complete) return fail("write with delivery completion", kErrno + EOPNOTSUPP);
  ibv_send_wr& request = add(*pair, from, context, Event::Kind::written, true);
  request.opcode = IBV_WR_RDMA_WRITE;
  if (options.with_immediate) {
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htobe32(options.immediate);
  }
  request.wr.rdma.remote_addr = to.address;
  request.wr.rdma.rkey = static_cast<std::uint32_t>(to.key);
  return posted(*pair);
}

Post VerbsRail::read(const RemoteChunk& from, const LocalChunk& to, PostContext* context) {
  Pair* const pair = ready_pair(from.remote);
  if (pair == nullptr) return refuse_post("read", from.remote);
  if (!has_room(*pair, data_depth_)) return Post::busy;
  ibv_send_wr& request = add(*pair, to, context, Event::Kind::read, false);
  request.opcode = IBV_WR_RDMA_READ;
  request.wr.rdma.remote_addr = from.address;
  request.wr.rdma.rkey = static_cast<std::uint32_t>(from.key);
  return posted(*pair);
}

Post VerbsRail::atomic(const RemoteChunk& at, AtomicRequest request, const LocalChunk& result, PostContext* context) {
  Pair* const pair = ready_pair(at.remote);
  if (pair == nullptr) return refuse_post("atomic", at.remote);
  if (!capabilities_.native_atomics) return fail("atomic", kErrno + EOPNOTSUPP);
  if (result.bytes != sizeof(std::uint64_t) || at.address % sizeof(std::uint64_t) != 0)
    return fail("atomic", kErrno + EINVAL);
  if (!has_room(*pair, data_depth_)) return Post::busy;
  ibv_send_wr& work = add(*pair, result, context, Event::Kind::read, false);
  const bool swap = request.kind == AtomicRequest::Kind::compare_swap;
  work.opcode = swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
  work.wr.atomic.remote_addr = at.address;
  work.wr.atomic.rkey = static_cast<std::uint32_t>(at.key);
  work.wr.atomic.compare_add = swap ? request.compare : request.value;
  work.wr.atomic.swap = request.value;
  return posted(*pair);
}

std::size_t VerbsRail::poll(std::span<Event> events) {
  if (stopped_ || events.empty()) return 0;
  if (to_ring_ != nullptr) ring();
  if (++turn_ % kSetUpLook == 0) look_around();
  if (flush_.active) [[unlikely]]
    return poll_flushed(events);
  std::size_t count = 0;
  if (gone_ || !pending_.empty()) [[unlikely]] {
    count = pending_.take(events);
    if (gone_ || count == events.size()) return count;
  }
  bool emptied = false;
  count += read_queue(events.subspan(count), emptied);
  if (emptied && !closing_.empty()) sweep();
  return count;
}

inline VerbsRail::Pair* VerbsRail::pair_named(std::uint64_t wr_id) {
  const auto slot = static_cast<std::uint32_t>(wr_id >> kSlotShift) & kSlotMask;
  Pair* const pair = slot < slots_.size() ? slots_[slot].pair.get() : nullptr;
  return pair != nullptr && pair->queue.named(wr_id) ? pair : nullptr;
}

std::size_t VerbsRail::read_queue(std::span<Event> events, bool& emptied) {
  std::array<ibv_wc, kReadBatch> completions;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
  Event* next = events.data();
  Event* const end = next + events.size();
  while (next < end) {
    const int room = static_cast<int>(std::min<std::ptrdiff_t>(end - next, kReadBatch));
    const int found = ibv_poll_cq(queue_.get(), room, completions.data());
    if (found < 0) [[unlikely]] {
      log_error(in_log(), "its completion queue failed");
      device_gone();
      break;
    }
    Pair* pair = nullptr;  // often that of the completion before
    for (const ibv_wc *one = completions.data(), *const last = one + found; one < last; ++one) {
      if ((one->wr_id & kSend) == 0) {
        next = take_received(*one, next, end);
        continue;
      }
      if (pair == nullptr || !pair->queue.named(one->wr_id)) pair = pair_named(one->wr_id);
      // One completion speaks for all work requests before it that asked for none.
      const auto index = static_cast<std::uint32_t>(one->wr_id) & SendQueue::kIndexMask;
      const std::uint32_t count = pair != nullptr ? pair->queue.covers(index) : 0;
      if (count == 0) [[unlikely]] {
        take_other(*one);
        if (gone_) break;
        pair = nullptr;
      } else if (one->status == IBV_WC_SUCCESS) [[likely]] {
        next = take_sent(*pair, count, next, end);
      } else {
        next = take_sent(*pair, count - 1, next, end);
        next = take_failed(*pair, *one, next, end);
        if (gone_) break;
        pair = nullptr;
      }
    }
    if (found < room) {
      emptied = !gone_;
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

inline Event* VerbsRail::take_sent(Pair& pair, std::uint32_t count, Event* next, Event* end) {
  transmit_room_ += count;
  for (; count != 0; --count) {
    const SendQueue::Entry entry = pair.queue.retire();
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
  for (bool emptied = false; !emptied && !gone_;) {
    const std::size_t count = read_queue(found, emptied);
    for (std::size_t i = 0; i < count; ++i) pending_.push(found[i]);
  }
}

}  // namespace railyard::fabric::verbs
