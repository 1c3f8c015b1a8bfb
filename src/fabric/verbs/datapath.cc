/// Posts and completions.
#include <algorithm>
#include <array>
#include <cerrno>

#include "base/log.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

Post VerbsRail::fail(const char* operation, int error) {
  failed_operation_ = operation;
  failed_error_ = error;
  return Post::failed;
}

Post VerbsRail::refuse_post(const char* operation, RemoteId remote) {
  if (gone_) return fail(operation, kDeviceGone);
  if (!stopped_ && known(remote)) {
    if (links_[remote].state == Link::State::connecting) return Post::busy;
    return fail(operation, IBV_WC_WR_FLUSH_ERR);
  }
  return fail(operation, stopped_ ? kDeviceGone : kPeerEnded);
}

ibv_send_wr& VerbsRail::add(Pair& pair, LocalPiece piece, PostContext* context, Event::Kind kind) {
  if (!pair.queue.holds()) to_ring_.push_back(&pair);
  ++transmits_;
  ibv_send_wr& request = pair.queue.add(context, kind);
  request.sg_list->addr = reinterpret_cast<std::uint64_t>(piece.address);
  request.sg_list->length = static_cast<std::uint32_t>(piece.bytes);
  request.sg_list->lkey = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(piece.descriptor));
  request.num_sge = piece.bytes != 0 ? 1 : 0;
  return request;
}

/// A full chain leaves at once, a shorter one with the next `ring`.
Post VerbsRail::posted(Pair& pair) {
  if (pair.queue.chain_full()) [[unlikely]] {
    std::erase(to_ring_, &pair);
    ring(pair);
  }
  return Post::posted;
}

void VerbsRail::ring(Pair& pair) {
  if (const int code = pair.queue.ring(); code != 0) [[unlikely]] {
    log_debug("{}: the device did not take work: {}", name_, std::strerror(code));
    pair_failed(pair, kErrno + code, false);
  }
}

void VerbsRail::ring() {
  while (!to_ring_.empty()) {
    Pair& pair = *to_ring_.back();
    to_ring_.pop_back();
    ring(pair);
  }
}

Post VerbsRail::send(RemoteId remote, LocalPiece message, PostContext* context) {
  Pair* const pair = ready_pair(remote);
  if (pair == nullptr) return refuse_post("send", remote);
  if (!has_room(*pair, 0)) return Post::busy;
  ibv_send_wr& request = add(*pair, message, context, Event::Kind::sent);
  request.opcode = IBV_WR_SEND;
  if (message.bytes <= inline_bytes_) request.send_flags |= IBV_SEND_INLINE;
  return posted(*pair);
}

Post VerbsRail::receive(LocalPiece buffer, PostContext* context) {
  if (stopped_ || gone_) return fail("receive", kDeviceGone);
  if (receives_ >= receive_room_) return Post::busy;
  ibv_sge piece{reinterpret_cast<std::uint64_t>(buffer.address), static_cast<std::uint32_t>(buffer.bytes),
                static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(buffer.descriptor))};
  ibv_recv_wr request{};
  request.wr_id = reinterpret_cast<std::uint64_t>(context);
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  const int code = ibv_post_srq_recv(shared_receives_.get(), &request, &bad);
  if (code == ENOMEM) return Post::busy;
  if (code != 0) return fail("receive", kErrno + code);
  ++receives_;
  return Post::posted;
}

Post VerbsRail::write(RemotePiece to, LocalPiece from, WriteOptions options, PostContext* context) {
  Pair* const pair = ready_pair(to.remote);
  if (pair == nullptr) return refuse_post("write", to.remote);
  if (!has_room(*pair, control_reserve_)) return Post::busy;
  if (options.delivery_complete) return fail("write with delivery completion", kErrno + EOPNOTSUPP);
  ibv_send_wr& request = add(*pair, from, context, Event::Kind::written);
  request.opcode = options.with_immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.imm_data = htobe32(options.immediate);
  request.wr.rdma.remote_addr = to.address;
  request.wr.rdma.rkey = static_cast<std::uint32_t>(to.key);
  if (from.bytes <= inline_bytes_) request.send_flags |= IBV_SEND_INLINE;
  return posted(*pair);
}

Post VerbsRail::read(RemotePiece from, LocalPiece to, PostContext* context) {
  Pair* const pair = ready_pair(from.remote);
  if (pair == nullptr) return refuse_post("read", from.remote);
  if (!has_room(*pair, control_reserve_)) return Post::busy;
  ibv_send_wr& request = add(*pair, to, context, Event::Kind::read);
  request.opcode = IBV_WR_RDMA_READ;
  request.wr.rdma.remote_addr = from.address;
  request.wr.rdma.rkey = static_cast<std::uint32_t>(from.key);
  return posted(*pair);
}

Post VerbsRail::atomic(RemotePiece at, AtomicRequest wanted, LocalPiece result, PostContext* context) {
  Pair* const pair = ready_pair(at.remote);
  if (pair == nullptr) return refuse_post("atomic", at.remote);
  if (!capabilities_.native_atomics) return fail("atomic", kErrno + EOPNOTSUPP);
  if (result.bytes != sizeof(std::uint64_t) || at.address % sizeof(std::uint64_t) != 0)
    return fail("atomic", kErrno + EINVAL);
  if (!has_room(*pair, control_reserve_)) return Post::busy;
  ibv_send_wr& request = add(*pair, result, context, Event::Kind::read);
  const bool swap = wanted.kind == AtomicRequest::Kind::compare_swap;
  request.opcode = swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
  request.wr.atomic.remote_addr = at.address;
  request.wr.atomic.rkey = static_cast<std::uint32_t>(at.key);
  request.wr.atomic.compare_add = swap ? wanted.compare : wanted.value;
  request.wr.atomic.swap = wanted.value;
  return posted(*pair);
}

std::size_t VerbsRail::poll(std::span<Event> events) {
  if (stopped_ || events.empty()) return 0;
  if (!to_ring_.empty()) ring();
  ++turn_;
  if (!gone_) {
    if (turn_ % kSlowLook == 0) look_at_device();
    const bool busy = !meeting_.empty() || !farewells_.empty();
    if (!gone_ && (turn_ % (kSlowLook * kSlowLook) == 0 || (busy && turn_ % kSetUpLook == 0))) look_at_meetings();
  }
  std::size_t count = pending_.empty() ? 0 : pending_.take(events);
  if (gone_ || count == events.size()) return count;
  bool emptied = false;
  count += read_queue(events.subspan(count), emptied);
  if (emptied && !closing_.empty()) sweep();
  return count;
}

std::size_t VerbsRail::read_queue(std::span<Event> events, bool& emptied) {
  std::array<ibv_wc, kReadBatch> completions;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
  Event* next = events.data();
  Event* const end = next + events.size();
  while (next < end) {
    const int room = static_cast<int>(std::min<std::ptrdiff_t>(end - next, kReadBatch));
    const int found = ibv_poll_cq(queue_.get(), room, completions.data());
    if (found < 0) {
      log_error("{}: its completion queue failed", name_);
      device_gone();
      break;
    }
    for (int i = 0; i < found && !gone_; ++i) next = take(completions[static_cast<std::size_t>(i)], next, end);
    if (found < room) {
      emptied = !gone_;
      break;
    }
  }
  return static_cast<std::size_t>(next - events.data());
}

Event* VerbsRail::put(const Event& event, Event* next, Event* end) {
  if (next < end) {
    *next = event;
    return next + 1;
  }
  pending_.push(event);
  return next;
}

Event* VerbsRail::take(const ibv_wc& completion, Event* next, Event* end) {
  if ((completion.wr_id & kSend) != 0) {
    if ((completion.wr_id & Office::kArrives) != Office::kArrives) return take_sent(completion, next, end);
    if (const auto letter = office_.take(completion)) read_letter(*letter);
    return next;
  }
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

/// One completion speaks for all work requests before it that asked for none.
Event* VerbsRail::take_sent(const ibv_wc& completion, Event* next, Event* end) {
  const auto slot = static_cast<std::uint32_t>(completion.wr_id >> kSlotShift) & kSlotMask;
  const auto life = static_cast<std::uint16_t>(completion.wr_id >> SendQueue::kIndexBits);
  Pair* const pair = slot < slots_.size() ? slots_[slot].pair.get() : nullptr;
  std::uint32_t count = 0;
  if (pair != nullptr && life == static_cast<std::uint16_t>(slots_[slot].generation))
    count = pair->queue.covers(static_cast<std::uint32_t>(completion.wr_id) & SendQueue::kIndexMask);
  if (count == 0) [[unlikely]] {
    ++stale_;
    return next;
  }
  transmits_ -= count;
  const bool failed = completion.status != IBV_WC_SUCCESS;
  for (; count != 0; --count) {
    const SendQueue::Entry entry = pair->queue.retire();
    const bool bad = failed && count == 1;
    if (next < end) [[likely]] {
      next->kind = bad ? Event::Kind::failed : entry.kind;
      next->context = entry.context;
      next->error = completion.status;
      ++next;
    } else {
      Event event;
      event.kind = bad ? Event::Kind::failed : entry.kind;
      event.context = entry.context;
      event.error = completion.status;
      pending_.push(event);
    }
  }
  if (failed) [[unlikely]] {
    if (completion.status != IBV_WC_WR_FLUSH_ERR)
      log_debug("{}: error completion: {}", name_, describe_error(completion.status));
    pair_failed(*pair, completion.status, false);  // a queue pair does not survive a failed operation
  }
  return next;
}

void VerbsRail::drain() {
  std::array<Event, kReadBatch> found;
  for (bool emptied = false; !emptied && !gone_;) {
    const std::size_t count = read_queue(found, emptied);
    for (std::size_t i = 0; i < count; ++i) pending_.push(found[i]);
  }
}

}  // namespace railyard::fabric::verbs
