/// Posts and polls. The way through them that all traffic takes is what a device's own library does: entries written,
/// a doorbell rung; entries read. Everything unusual is behind one look at `plain`.
#include <cerrno>
#include <cstring>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

[[gnu::noinline]] void move(QueuePair& pair) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  core.ring(pair);
}

[[gnu::noinline]] void move_all() {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  core.advance();
}

[[gnu::noinline]] int too_many_sges() {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  core.violation("a work request with more than one scatter-gather entry: the double carries one");
  return EINVAL;
}

/// Why a pair that is not plain takes no work requests; 0: it does.
[[gnu::noinline]] int closer_look(const QueuePair& pair, const char* name) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  if (!core.known(&pair, name)) return EINVAL;
  if (const int error = refused(*pair.owner, name); error != 0) return error;
  const ibv_qp_state state = pair.now;
  if (std::strcmp(name, "post_recv") == 0) return state == IBV_QPS_RESET ? EINVAL : 0;
  return state == IBV_QPS_RTS || state == IBV_QPS_ERR ? 0 : EINVAL;
}

/// 0, or why not.
inline int write_entry(const QueuePair& pair, WorkRequest& entry, const ibv_send_wr& request) {
  entry.opcode = static_cast<std::uint8_t>(request.opcode);
  entry.flags = static_cast<std::uint8_t>(request.send_flags);
  entry.immediate = request.imm_data;
  entry.id = request.wr_id;
  if (pair.qp_type == IBV_QPT_UD) [[unlikely]] {
    if (request.opcode != IBV_WR_SEND && request.opcode != IBV_WR_SEND_WITH_IMM) return EINVAL;
    entry.remote_address = reinterpret_cast<std::uint64_t>(static_cast<AddressHandle*>(request.wr.ud.ah));
    entry.rkey = request.wr.ud.remote_qpn;
    entry.compare_add = request.wr.ud.remote_qkey;
  } else if (request.opcode <= IBV_WR_RDMA_READ) {
    entry.remote_address = request.wr.rdma.remote_addr;
    entry.rkey = request.wr.rdma.rkey;
  } else if (request.opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD) {
    entry.remote_address = request.wr.atomic.remote_addr;
    entry.compare_add = request.wr.atomic.compare_add;
    entry.swap = request.wr.atomic.swap;
    entry.rkey = request.wr.atomic.rkey;
  } else {
    return EINVAL;
  }
  if (request.num_sge == 0) {
    entry.length = 0;
    return 0;
  }
  if (request.num_sge != 1) [[unlikely]] {
    return too_many_sges();
  }
  const ibv_sge& sge = *request.sg_list;
  entry.length = sge.length;
  if ((request.send_flags & IBV_SEND_INLINE) != 0) {
    if (sge.length > pair.sends.inline_limit || request.opcode >= IBV_WR_RDMA_READ) return EINVAL;
    std::memcpy(entry.inline_bytes(), reinterpret_cast<const void*>(sge.addr), sge.length);
    return 0;
  }
  entry.address = sge.addr;
  entry.lkey = sge.lkey;
  return 0;
}

int post_send(ibv_qp* handle, ibv_send_wr* request, ibv_send_wr** bad) {
  auto& pair = *static_cast<QueuePair*>(handle);
  if (!pair.plain.load(std::memory_order_relaxed)) [[unlikely]] {
    if (const int error = closer_look(pair, "post_send"); error != 0) {
      *bad = request;
      return error;
    }
  }
  SendQueue& sends = pair.sends;
  // The acquire pairs with the poller's release: the network is done with the entries that were retired.
  const std::uint32_t full = sends.retired.load(std::memory_order_acquire) + sends.depth;
  std::uint32_t head = sends.head;
  int error = 0;
  for (; request != nullptr; request = request->next) {
    if (head == full) [[unlikely]] {
      error = ENOMEM;
    } else {
      error = write_entry(pair, *sends.at(head), *request);
    }
    if (error != 0) [[unlikely]] {
      *bad = request;
      break;
    }
    ++head;
  }
  sends.head = head;
  sends.doorbell.store(head, std::memory_order_release);
  if (here().by_itself.load(std::memory_order_relaxed)) move(pair);
  return error;
}

inline int add_receives(ReceiveQueue& queue, ibv_recv_wr* request, ibv_recv_wr** bad) {
  const std::uint32_t full = queue.polled.load(std::memory_order_acquire) + queue.depth;
  std::uint32_t head = queue.head;
  int error = 0;
  for (; request != nullptr; request = request->next) {
    if (head == full) [[unlikely]] {
      error = ENOMEM;
    } else if (request->num_sge > 1) [[unlikely]] {
      error = too_many_sges();
    }
    if (error != 0) [[unlikely]] {
      *bad = request;
      break;
    }
    ReceiveRequest& entry = *queue.at(head++);
    entry.id = request->wr_id;
    if (request->num_sge == 0) {
      entry.length = 0;
      continue;
    }
    entry.address = request->sg_list->addr;
    entry.length = request->sg_list->length;
    entry.lkey = request->sg_list->lkey;
  }
  queue.head = head;
  queue.doorbell.store(head, std::memory_order_release);
  return error;
}

/// Somebody may have waited for a receive.
inline void move_who_waits() {
  Core& core = here();
  if (core.by_itself.load(std::memory_order_relaxed) && core.waiting.load(std::memory_order_relaxed) != 0) move_all();
}

int post_srq_recv(ibv_srq* handle, ibv_recv_wr* request, ibv_recv_wr** bad) {
  auto& shared = *static_cast<SharedReceiveQueue*>(handle);
  if (!shared.plain.load(std::memory_order_relaxed)) [[unlikely]] {
    Core& core = here();
    const std::lock_guard lock(core.lock);
    const int error = core.known(&shared, "post_srq_recv") ? refused(*shared.owner, "post_srq_recv") : EINVAL;
    if (error != 0) {
      *bad = request;
      return error;
    }
  }
  const int error = add_receives(shared.queue, request, bad);
  move_who_waits();
  return error;
}

int post_recv(ibv_qp* handle, ibv_recv_wr* request, ibv_recv_wr** bad) {
  auto& pair = *static_cast<QueuePair*>(handle);
  int error = closer_look(pair, "post_recv");
  if (error == 0 && pair.srq != nullptr) error = EINVAL;
  if (error != 0) {
    *bad = request;
    return error;
  }
  error = add_receives(pair.receives, request, bad);
  if (pair.now == IBV_QPS_ERR && here().by_itself) move(pair);
  move_who_waits();
  return error;
}

/// False: nothing to be had from it.
[[gnu::noinline]] bool closer_look(const CompletionQueue& queue, int* answer) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  *answer = 0;
  if (!core.known(&queue, "poll_cq")) return false;
  if (core.wanted_failure("poll_cq") == 0) return !queue.owner->dead;
  *answer = -1;
  return false;
}

int poll_cq(ibv_cq* handle, int most, ibv_wc* out) {
  auto& queue = *static_cast<CompletionQueue*>(handle);
  if (!queue.plain.load(std::memory_order_relaxed)) [[unlikely]] {
    int answer = 0;
    if (!closer_look(queue, &answer)) return answer;
  }
  move_who_waits();
  CompletionRing& ring = queue.ring;
  std::uint32_t consumer = ring.consumer.load(std::memory_order_relaxed);
  int got = 0;
  while (got < most) {
    const CompletionEntry& entry = ring.at(consumer);
    if (entry.turn.load(std::memory_order_acquire) != consumer + 1) break;
    ++consumer;
    if (entry.removed) [[unlikely]] {
      continue;
    }
    const Completion& what = entry.completion;
    ibv_wc& completion = out[got++];
    completion.wr_id = what.id;
    completion.status = static_cast<ibv_wc_status>(what.status);
    completion.opcode = static_cast<ibv_wc_opcode>(what.opcode);
    completion.vendor_err = 0;
    completion.byte_len = what.bytes;
    completion.imm_data = what.immediate;
    completion.qp_num = what.qp_num;
    completion.src_qp = what.source_qp;
    completion.wc_flags = what.flags;
    completion.pkey_index = 0;
    completion.slid = what.source_lid;
    completion.sl = 0;
    completion.dlid_path_bits = 0;
    if (what.sends != nullptr) {
      what.sends->retired.store(what.retires, std::memory_order_release);
    } else {
      ReceiveQueue& receives = *what.receives;
      receives.polled.store(receives.polled.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
  }
  ring.consumer.store(consumer, std::memory_order_release);
  return got;
}

}  // namespace

void add_datapath(ibv_context_ops& operations) {
  operations.post_send = post_send;
  operations.post_recv = post_recv;
  operations.post_srq_recv = post_srq_recv;
  operations.poll_cq = poll_cq;
}

}  // namespace railyard::verbs_double
