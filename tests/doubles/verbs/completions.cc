/// Completion queues as the network fills them, and what an error does to a pair.
#include <algorithm>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

ibv_wc_opcode told_as(std::uint8_t opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

}  // namespace

void Core::complete(CompletionQueue& queue, const Completion& completion) {
  CompletionRing& ring = queue.ring;
  if (queue.overrun) return;
  const std::uint32_t held = ring.producer - ring.consumer.load(std::memory_order_acquire);
  if (held == ring.depth) {
    queue.overrun = true;
    violation("a completion queue of " + std::string(queue.owner->name) + " for " + std::to_string(ring.depth) +
              " ran over");
    tell(static_cast<DoubleContext&>(*queue.context), IBV_EVENT_CQ_ERR, &queue);
    return;
  }
  Traffic& traffic = queue.owner->traffic;
  ++traffic.completions;
  traffic.peak_completions = std::max(traffic.peak_completions, held + 1);
  CompletionEntry& entry = ring.at(ring.producer++);
  entry.removed = false;
  entry.completion = completion;
  if (completion.status != IBV_WC_SUCCESS) {
    // Only id, status and pair are defined then: who relies on the rest is misled.
    entry.completion.opcode = completion.sends != nullptr ? IBV_WC_RECV : IBV_WC_SEND;
    entry.completion.bytes = 0xdeadbeef;
    entry.completion.flags = 0;
  }
  entry.turn.store(ring.producer, std::memory_order_release);
}

void Core::complete_send(QueuePair& pair, std::uint32_t index, ibv_wc_status status) {
  const WorkRequest& request = *pair.sends.at(index);
  const bool wanted = pair.signals_all || (request.flags & IBV_SEND_SIGNALED) != 0;
  if (!wanted && status == IBV_WC_SUCCESS) return;
  Completion completion{};
  completion.status = static_cast<std::uint8_t>(status);
  completion.opcode = static_cast<std::uint8_t>(told_as(request.opcode));
  completion.id = request.id;
  completion.bytes = request.length;
  completion.qp_num = pair.qp_num;
  completion.retires = index + 1;
  completion.sends = &pair.sends;
  complete(pair.send_completions(), completion);
}

void Core::complete_receive(QueuePair& pair, const ReceiveRequest& request, Completion completion) {
  ReceiveQueue& queue = pair.receive_queue();
  Traffic& traffic = pair.owner->traffic;
  traffic.peak_receives = std::max(traffic.peak_receives, queue.doorbell - queue.polled);
  ++queue.taken;
  completion.id = request.id;
  completion.qp_num = pair.qp_num;
  completion.receives = &queue;
  complete(pair.receive_completions(), completion);
}

void Core::remove_completions(CompletionQueue& queue, const QueuePair& pair) {
  CompletionRing& ring = queue.ring;
  for (std::uint32_t i = ring.consumer.load(std::memory_order_acquire); i != ring.producer; ++i) {
    CompletionEntry& entry = ring.at(i);
    if (entry.completion.qp_num != pair.qp_num || entry.removed) continue;
    entry.removed = true;
    if (entry.completion.receives != nullptr) entry.completion.receives->polled.fetch_add(1, std::memory_order_release);
  }
}

void Core::to_error(QueuePair& pair) {
  if (pair.now == IBV_QPS_ERR) return;
  pair.now = IBV_QPS_ERR;
  pair.state = IBV_QPS_ERR;
  pair.plain = false;
  if (pair.srq != nullptr) tell_pair(pair, IBV_EVENT_QP_LAST_WQE_REACHED);
  wake(pair);
}

void Core::fail(QueuePair& pair, ibv_wc_status status) {
  complete_send(pair, pair.sends.acknowledged++, status);
  pair.sends.executed = pair.sends.acknowledged;
  to_error(pair);
}

}  // namespace railyard::verbs_double
