/// What a work request of a connected pair does at the other end.
#include <cstring>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

using Verdict = Core::Verdict;

constexpr Verdict kDone{Verdict::Kind::done};
constexpr Verdict failed(ibv_wc_status status) { return {Verdict::Kind::failed, status}; }

bool hears(ibv_qp_state state) { return state == IBV_QPS_RTR || state == IBV_QPS_RTS; }

bool is_atomic(std::uint8_t opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool takes_receive(std::uint8_t opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

bool has_immediate(std::uint8_t opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/// Whether the address that `one` sends to is the one `other` sends from.
bool speaks_to(const QueuePair& one, const QueuePair& other) {
  const ibv_ah_attr& to = one.settings.ah_attr;
  const ibv_ah_attr& back = other.settings.ah_attr;
  const Port& port = other.owner->ports[other.settings.port_num - 1u];
  if (to.is_global == 0 || back.is_global == 0) return to.is_global == back.is_global && to.dlid == port.lid;
  const Gid& source = one.owner->ports[one.settings.port_num - 1u].gids[to.grh.sgid_index];
  const Gid& target = port.gids[back.grh.sgid_index];
  return source.type == target.type && std::memcmp(target.gid.raw, to.grh.dgid.raw, sizeof target.gid.raw) == 0;
}

/// One transfer between two pairs.
struct Transfer {
  Core& core;
  QueuePair& pair;
  QueuePair& peer;
  WorkRequest& request;

  /// The responder says no; its pair is over, and the event says why.
  Verdict turned_down(ibv_wc_status status, ibv_event_type event) const {
    core.tell_pair(peer, event);
    core.to_error(peer);
    return failed(status);
  }
  Verdict no_access() const { return turned_down(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR); }
  Verdict invalid() const { return turned_down(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR); }

  Location local(bool write) const {
    if ((request.flags & IBV_SEND_INLINE) != 0) return {request.inline_bytes()};
    return core.local(pair, request.lkey, request.address, request.length, write);
  }
  Location remote(unsigned access) const {
    return core.remote(peer, request.rkey, request.remote_address, request.length, access);
  }

  Verdict write() const {
    if (request.length == 0) return kDone;
    const Location source = local(false);
    if (!source) return failed(IBV_WC_LOC_PROT_ERR);
    const Location target = remote(IBV_ACCESS_REMOTE_WRITE);
    if (!target) return no_access();
    move_bytes(target, source, request.length);
    return kDone;
  }

  Verdict read() const {
    if (pair.settings.max_rd_atomic == 0) return failed(IBV_WC_LOC_QP_OP_ERR);
    if (pair.settings.max_rd_atomic > peer.settings.max_dest_rd_atomic) return invalid();
    if (request.length == 0) return kDone;
    const Location target = local(true);
    if (!target) return failed(IBV_WC_LOC_PROT_ERR);
    const Location source = remote(IBV_ACCESS_REMOTE_READ);
    if (!source) return no_access();
    move_bytes(target, source, request.length);
    return kDone;
  }

  Verdict change() const {
    if (pair.settings.max_rd_atomic == 0) return failed(IBV_WC_LOC_QP_OP_ERR);
    if (pair.settings.max_rd_atomic > peer.settings.max_dest_rd_atomic || !peer.owner->options.atomics ||
        request.remote_address % sizeof(std::uint64_t) != 0) {
      return invalid();
    }
    if (request.length != sizeof(std::uint64_t)) return failed(IBV_WC_LOC_LEN_ERR);
    const Location answer = local(true);
    if (!answer) return failed(IBV_WC_LOC_PROT_ERR);
    const Location target = remote(IBV_ACCESS_REMOTE_ATOMIC);
    if (!target) return no_access();
    if (target.gpu != nullptr) return invalid();  // nobody asks for these
    std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(target.memory));
    std::uint64_t before = request.compare_add;
    if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      before = word.fetch_add(request.compare_add);
    } else {
      word.compare_exchange_strong(before, request.swap);
    }
    move_bytes(answer, {reinterpret_cast<std::byte*>(&before)}, sizeof before);
    return kDone;
  }

  /// A message into the receive in front.
  Verdict send(const ReceiveRequest& receive) const {
    const Location source = request.length == 0 ? Location{} : local(false);
    if (request.length != 0 && !source) return failed(IBV_WC_LOC_PROT_ERR);
    if (request.length > receive.length) {
      finish_receive(receive, IBV_WC_LOC_LEN_ERR, IBV_WC_RECV, 0);
      return invalid();
    }
    if (request.length != 0) {
      const Location target = core.local(peer, receive.lkey, receive.address, receive.length, true);
      if (!target) {
        finish_receive(receive, IBV_WC_LOC_PROT_ERR, IBV_WC_RECV, 0);
        return turned_down(IBV_WC_REM_OP_ERR, IBV_EVENT_QP_FATAL);
      }
      move_bytes(target, source, request.length);
    }
    finish_receive(receive, IBV_WC_SUCCESS, IBV_WC_RECV, request.length);
    return kDone;
  }

  void finish_receive(const ReceiveRequest& receive, ibv_wc_status status, ibv_wc_opcode opcode,
                      std::uint32_t bytes) const {
    Completion completion{};
    completion.status = static_cast<std::uint8_t>(status);
    completion.opcode = static_cast<std::uint8_t>(opcode);
    completion.bytes = bytes;
    completion.source_qp = pair.qp_num;
    if (has_immediate(request.opcode)) {
      completion.flags = IBV_WC_WITH_IMM;
      completion.immediate = request.immediate;
    }
    core.complete_receive(peer, receive, completion);
  }

  Verdict run() const {
    const ReceiveRequest* receive = nullptr;
    if (takes_receive(request.opcode)) {
      receive = peer.receive_queue().oldest();
      if (receive == nullptr) {
        // 7 means for ever.
        if (!pair.stalled) ++pair.owner->traffic.receiver_waits;
        if (pair.settings.rnr_retry != 7) return {Verdict::Kind::unanswered, IBV_WC_RNR_RETRY_EXC_ERR};
        pair.stalled = true;
        pair.stalled_since = Clock::now();
        return {Verdict::Kind::waits};
      }
    }
    if (pair.settings.path_mtu != peer.settings.path_mtu) return invalid();
    switch (request.opcode) {
      case IBV_WR_RDMA_WRITE:
        return write();
      case IBV_WR_RDMA_WRITE_WITH_IMM: {
        const Verdict verdict = write();
        if (verdict.kind == Verdict::Kind::done) {
          finish_receive(*receive, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, request.length);
        }
        return verdict;
      }
      case IBV_WR_RDMA_READ:
        return read();
      case IBV_WR_SEND:
      case IBV_WR_SEND_WITH_IMM:
        return send(*receive);
      default:
        return is_atomic(request.opcode) ? change() : failed(IBV_WC_LOC_QP_OP_ERR);
    }
  }
};

}  // namespace

QueuePair* Core::peer_of(QueuePair& pair) {
  const ibv_qp_attr& settings = pair.settings;
  const Destination destination = find(settings.ah_attr, *pair.owner);
  if (!path_open(*pair.owner, settings.port_num, destination)) return nullptr;
  const auto found = destination.device->pairs.find(settings.dest_qp_num);
  if (found == destination.device->pairs.end()) return nullptr;
  QueuePair& peer = *found->second;
  if (!peer.connected() || !hears(peer.now) || peer.settings.dest_qp_num != pair.qp_num) return nullptr;
  // Packets from elsewhere, of another kind, or out of their sequence, are not taken.
  if (!speaks_to(peer, pair) || !speaks_to(pair, peer)) return nullptr;
  return peer.settings.rq_psn == settings.sq_psn ? &peer : nullptr;
}

Core::Verdict Core::execute(QueuePair& pair, WorkRequest& request) {
  QueuePair* const peer = peer_of(pair);
  if (peer == nullptr) return {Verdict::Kind::unanswered, IBV_WC_RETRY_EXC_ERR};
  if (peer->owner->frozen) {
    pair.stalled = false;
    return {Verdict::Kind::waits};
  }
  if (!peer->heard) {
    peer->heard = true;
    if (peer->now == IBV_QPS_RTR) tell_pair(*peer, IBV_EVENT_COMM_EST);
  }
  return Transfer{*this, pair, *peer, request}.run();
}

}  // namespace railyard::verbs_double
