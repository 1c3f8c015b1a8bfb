/// A program on bare verbs calls: one end with its queues and registered memory. For tests of the double itself and for
/// what a rail is measured against.
#pragma once

#include <fcntl.h>

#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "fabric/verbs/library.hpp"

namespace railyard::verbs_double {

/// A call that had to work did not.
inline void must(bool worked, const char* what) {
  if (!worked) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

struct EndOptions {
  std::uint32_t send_depth = 16;
  std::uint32_t receive_depth = 16;  ///< of the shared receive queue
  int completions = 64;
  std::uint32_t inline_bytes = 64;
  std::uint8_t rnr_retry = 7;
  std::size_t memory = 4096;
  unsigned access =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  ibv_mtu path_mtu = IBV_MTU_1024;
  std::uint32_t first_packet = 0;  ///< of what it sends, beyond the number of the pair
  int gid_index = 3;               ///< where the double keeps the routed RoCE v2 one
};

/// Context, domain, completion queue, shared receive queue, registered memory.
class End {
 public:
  End(const fabric::verbs::Library& calls, std::size_t device, const EndOptions& options = {})
      : calls(calls), options(options), memory(options.memory) {
    int count = 0;
    ibv_device** const list = calls.get_device_list(&count);
    must(list != nullptr && static_cast<std::size_t>(count) > device, "get_device_list");
    context = list != nullptr ? calls.open_device(list[device]) : nullptr;
    calls.free_device_list(list);
    must(context != nullptr, "open_device");
    domain = calls.alloc_pd(context);
    must(domain != nullptr, "alloc_pd");
    queue = calls.create_cq(context, options.completions, nullptr, nullptr, 0);
    must(queue != nullptr, "create_cq");
    ibv_srq_init_attr shared{};
    shared.attr.max_wr = options.receive_depth;
    shared.attr.max_sge = 1;
    receives = calls.create_srq(domain, &shared);
    must(receives != nullptr, "create_srq");
    region = calls.reg_mr(domain, memory.data(), memory.size(), static_cast<int>(options.access));
    must(region != nullptr, "reg_mr");
    must(calls.query_gid(context, 1, options.gid_index, &gid) == 0, "query_gid");
    must(::fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0, "fcntl");
  }
  ~End() {
    for (ibv_ah* address : addresses) calls.destroy_ah(address);
    for (ibv_qp* pair : pairs) calls.destroy_qp(pair);
    calls.dereg_mr(region);
    calls.destroy_srq(receives);
    calls.destroy_cq(queue);
    calls.dealloc_pd(domain);
    calls.close_device(context);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  /// A pair of the type, in its first state; destroyed with the end unless destroy() was called.
  ibv_qp* make_pair(ibv_qp_type type = IBV_QPT_RC) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = queue;
    wanted.qp_type = type;
    wanted.cap.max_send_wr = options.send_depth;
    wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    wanted.cap.max_inline_data = options.inline_bytes;
    if (type == IBV_QPT_RC) {
      wanted.srq = receives;
    } else {
      wanted.cap.max_recv_wr = options.receive_depth;
    }
    ibv_qp* const pair = calls.create_qp(domain, &wanted);
    if (pair != nullptr) pairs.push_back(pair);
    return pair;
  }
  int destroy(ibv_qp* pair) {
    std::erase(pairs, pair);
    return calls.destroy_qp(pair);
  }

  int to_init(ibv_qp* pair, std::uint32_t queue_key = 0) const {
    ibv_qp_attr wanted{};
    wanted.qp_state = IBV_QPS_INIT;
    wanted.port_num = 1;
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (pair->qp_type == IBV_QPT_RC) {
      wanted.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
      mask |= IBV_QP_ACCESS_FLAGS;
    } else {
      wanted.qkey = queue_key;
      mask |= IBV_QP_QKEY;
    }
    return calls.modify_qp(pair, &wanted, mask);
  }
  ibv_ah_attr way_to(const ibv_gid& other) const {
    ibv_ah_attr address{};
    address.is_global = 1;
    address.grh.dgid = other;
    address.grh.sgid_index = static_cast<std::uint8_t>(options.gid_index);
    address.grh.hop_limit = 64;
    address.port_num = 1;
    return address;
  }
  int to_receive(ibv_qp* pair, const ibv_gid& other, std::uint32_t qp_num) const {
    ibv_qp_attr wanted{};
    wanted.qp_state = IBV_QPS_RTR;
    wanted.ah_attr = way_to(other);
    wanted.path_mtu = options.path_mtu;
    wanted.dest_qp_num = qp_num;
    wanted.rq_psn = qp_num;
    wanted.max_dest_rd_atomic = 4;
    wanted.min_rnr_timer = 1;
    const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return calls.modify_qp(pair, &wanted, pair->qp_type == IBV_QPT_RC ? mask : IBV_QP_STATE);
  }
  int to_send(ibv_qp* pair) const {
    ibv_qp_attr wanted{};
    wanted.qp_state = IBV_QPS_RTS;
    wanted.timeout = 14;
    wanted.retry_cnt = 7;
    wanted.rnr_retry = options.rnr_retry;
    wanted.sq_psn = pair->qp_num + options.first_packet;
    wanted.max_rd_atomic = 4;
    const int mask =
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    return calls.modify_qp(pair, &wanted, pair->qp_type == IBV_QPT_RC ? mask : IBV_QP_STATE | IBV_QP_SQ_PSN);
  }
  int to_error(ibv_qp* pair) const {
    ibv_qp_attr wanted{};
    wanted.qp_state = IBV_QPS_ERR;
    return calls.modify_qp(pair, &wanted, IBV_QP_STATE);
  }
  /// A datagram pair, ready.
  ibv_qp* make_datagram_pair(std::uint32_t queue_key) {
    ibv_qp* const pair = make_pair(IBV_QPT_UD);
    must(pair != nullptr && to_init(pair, queue_key) == 0 && to_receive(pair, gid, 0) == 0 && to_send(pair) == 0,
         "a datagram pair");
    return pair;
  }
  ibv_ah* make_address(const ibv_gid& other) {
    ibv_ah_attr wanted = way_to(other);
    ibv_ah* const address = calls.create_ah(domain, &wanted);
    if (address != nullptr) addresses.push_back(address);
    return address;
  }

  ibv_sge sge(std::size_t offset, std::uint32_t bytes) const {
    return {.addr = reinterpret_cast<std::uint64_t>(memory.data()) + offset, .length = bytes, .lkey = region->lkey};
  }
  /// A receive of `bytes` at `offset` in the memory, into the shared queue or a pair's own.
  int receive(std::uint64_t id, std::size_t offset, std::uint32_t bytes, ibv_qp* pair = nullptr) const {
    ibv_sge where = sge(offset, bytes);
    ibv_recv_wr request{};
    request.wr_id = id;
    request.sg_list = &where;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return pair == nullptr ? ibv_post_srq_recv(receives, &request, &bad) : ibv_post_recv(pair, &request, &bad);
  }
  std::optional<ibv_wc> poll() const {
    ibv_wc completion{};
    if (ibv_poll_cq(queue, 1, &completion) != 1) return std::nullopt;
    return completion;
  }
  std::optional<ibv_async_event> event() const {
    ibv_async_event event{};
    if (calls.get_async_event(context, &event) != 0) return std::nullopt;
    calls.ack_async_event(&event);
    return event;
  }

  const fabric::verbs::Library& calls;
  const EndOptions options;
  std::vector<std::byte> memory;
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_cq* queue = nullptr;
  ibv_srq* receives = nullptr;
  ibv_mr* region = nullptr;
  ibv_gid gid{};
  std::vector<ibv_qp*> pairs;
  std::vector<ibv_ah*> addresses;
};

/// One work request, to be posted alone or in a chain.
struct Work {
  ibv_sge sge{};
  ibv_send_wr request{};

  Work(const End& end, ibv_wr_opcode opcode, std::uint64_t id, std::size_t offset, std::uint32_t bytes,
       unsigned flags = IBV_SEND_SIGNALED)
      : sge(end.sge(offset, bytes)) {
    request.wr_id = id;
    request.sg_list = &sge;
    request.num_sge = bytes == 0 ? 0 : 1;
    request.opcode = opcode;
    request.send_flags = flags;
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  Work& at(const End& target, std::size_t offset) {
    const std::uint64_t address = reinterpret_cast<std::uint64_t>(target.memory.data()) + offset;
    if (request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      request.wr.atomic.remote_addr = address;
      request.wr.atomic.rkey = target.region->rkey;
    } else {
      request.wr.rdma.remote_addr = address;
      request.wr.rdma.rkey = target.region->rkey;
    }
    return *this;
  }
  Work& to(ibv_ah* address, std::uint32_t qp_num, std::uint32_t queue_key) {
    request.wr.ud = {.ah = address, .remote_qpn = qp_num, .remote_qkey = queue_key};
    return *this;
  }
  Work& immediate(std::uint32_t value) {
    request.imm_data = value;
    return *this;
  }
  Work& then(Work& other) {
    request.next = &other.request;
    return *this;
  }
  int post(ibv_qp* pair) {
    bad = nullptr;
    return ibv_post_send(pair, &request, &bad);
  }
  ibv_send_wr* bad = nullptr;
};

/// Two ends with a connected pair each.
struct Line {
  Line(const fabric::verbs::Library& calls, std::size_t from, std::size_t to, const EndOptions& options = {})
      : Line(calls, from, options, to, options) {}
  Line(const fabric::verbs::Library& calls, std::size_t from, const EndOptions& from_options, std::size_t to,
       const EndOptions& to_options)
      : near(calls, from, from_options), far(calls, to, to_options), out(near.make_pair()), in(far.make_pair()) {
    must(out != nullptr && in != nullptr, "create_qp");
    must(near.to_init(out) == 0 && far.to_init(in) == 0, "to INIT");
    must(near.to_receive(out, far.gid, in->qp_num) == 0 && far.to_receive(in, near.gid, out->qp_num) == 0, "to RTR");
    must(near.to_send(out) == 0 && far.to_send(in) == 0, "to RTS");
  }
  End near;
  End far;
  ibv_qp* out;
  ibv_qp* in;
};

}  // namespace railyard::verbs_double
