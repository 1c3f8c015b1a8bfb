/// When things move: what is posted goes as far as it can at once; what had to wait is looked at again in polls.
#include <algorithm>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

void Core::wake(QueuePair& pair) {
  if (pair.queued) return;
  pair.queued = true;
  active.push_back(&pair);
  waiting.fetch_add(1, std::memory_order_relaxed);
}

void Core::ring(QueuePair& pair) {
  Traffic& traffic = pair.owner->traffic;
  ++traffic.doorbells;
  wake(pair);
  if (pair.owner->pace == 0) advance();
}

void Core::advance() {
  land_datagrams();
  // A step may wake others: they are taken in the same pass.
  for (std::size_t next = 0; next < active.size();) {
    for (; next < active.size(); ++next) step(*active[next]);
    land_datagrams();
  }
  std::erase_if(active, [this](QueuePair* pair) {
    const SendQueue& sends = pair->sends;
    const bool over = sends.acknowledged == sends.doorbell.load(std::memory_order_acquire) &&
                      (pair->now != IBV_QPS_ERR || pair->receives.oldest() == nullptr);
    if (!over) return false;
    pair->queued = false;
    waiting.fetch_sub(1, std::memory_order_relaxed);
    return true;
  });
}

bool Core::stalled_too_long(QueuePair& pair) {
  const Clock::time_point now = Clock::now();
  if (!pair.stalled) {
    pair.stalled = true;
    pair.stalled_since = now;
    return false;
  }
  return now - pair.stalled_since >= retry_time;
}

void Core::acknowledge(QueuePair& pair) {
  SendQueue& sends = pair.sends;
  while (sends.acknowledged != sends.executed) complete_send(pair, sends.acknowledged++, IBV_WC_SUCCESS);
}

void Core::step(QueuePair& pair) {
  Device& device = *pair.owner;
  if (device.frozen) pair.stalled = false;
  if (device.frozen || device.dead) return;
  SendQueue& sends = pair.sends;
  const std::uint32_t end = sends.doorbell.load(std::memory_order_acquire);
  device.traffic.peak_send_queue =
      std::max(device.traffic.peak_send_queue, end - sends.retired.load(std::memory_order_relaxed));

  const bool kept = device.keeps_packets && pair.connected();
  if (kept && pair.now == IBV_QPS_RTS) keep_packets(pair, end);
  const std::uint32_t until = device.pace == 0 ? end : sends.executed + std::min(end - sends.executed, device.pace);
  while (pair.now == IBV_QPS_RTS && sends.executed != until) {
    WorkRequest& request = *sends.at(sends.executed);
    const Verdict verdict = kept               ? Verdict{Verdict::Kind::unanswered, IBV_WC_RETRY_EXC_ERR}
                            : pair.connected() ? execute(pair, request)
                                               : launch(pair, request);
    if (verdict.kind == Verdict::Kind::waits) break;
    if (verdict.kind == Verdict::Kind::unanswered) {
      // Held answers are lost too: the oldest without one fails. A receiver that is not ready has answered.
      if (stalled_too_long(pair)) {
        if (verdict.status == IBV_WC_RNR_RETRY_EXC_ERR) acknowledge(pair);
        fail(pair, verdict.status);
      }
      break;
    }
    pair.stalled = false;
    if (verdict.kind == Verdict::Kind::failed) {
      acknowledge(pair);
      fail(pair, verdict.status);
      break;
    }
    Traffic& traffic = device.traffic;
    ++traffic.work_requests;
    if ((request.flags & IBV_SEND_SIGNALED) != 0) ++traffic.signalled;
    if ((request.flags & IBV_SEND_INLINE) != 0) ++traffic.inlined;
    ++sends.executed;
    if (!device.held) acknowledge(pair);
  }

  if (pair.now == IBV_QPS_RTS && sends.acknowledged != sends.executed) {
    if (pair.connected() && peer_of(pair) == nullptr) {
      // The answers will not come any more: what has arrived is not known to have.
      if (stalled_too_long(pair)) fail(pair, IBV_WC_RETRY_EXC_ERR);
    } else if (!device.held) {
      acknowledge(pair);
    }
  }

  if (pair.now != IBV_QPS_ERR) return;
  while (sends.acknowledged != end) complete_send(pair, sends.acknowledged++, IBV_WC_WR_FLUSH_ERR);
  sends.executed = end;
  while (const ReceiveRequest* const request = pair.receives.oldest()) {
    Completion completion{};
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.opcode = IBV_WC_RECV;
    complete_receive(pair, *request, completion);
  }
}

}  // namespace railyard::verbs_double
