/// The states of a queue pair: what each step needs, and what leads nowhere.
#include <cerrno>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

struct Step {
  ibv_qp_state from;
  ibv_qp_state to;
  int connected;  ///< what a connected pair must bring
  int datagram;
};

constexpr int kState = IBV_QP_STATE;
constexpr int kPortBits = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
constexpr int kPeer =
    IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kSending = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr std::array kSteps = {
    Step{IBV_QPS_RESET, IBV_QPS_INIT, kState | kPortBits | IBV_QP_ACCESS_FLAGS, kState | kPortBits | IBV_QP_QKEY},
    Step{IBV_QPS_INIT, IBV_QPS_RTR, kState | kPeer, kState},
    Step{IBV_QPS_RTR, IBV_QPS_RTS, kState | kSending, kState | IBV_QP_SQ_PSN},
};

/// 0: the values fit the device.
int check(const Device& device, const ibv_qp_attr& wanted, int mask) {
  const auto most = static_cast<unsigned>(device.options.limits.max_rd_atomic);
  if ((mask & IBV_QP_PORT) != 0 && (wanted.port_num < 1 || wanted.port_num > device.ports.size())) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && wanted.pkey_index != 0) return EINVAL;
  if ((mask & IBV_QP_AV) != 0 && !address_valid(device, wanted.ah_attr)) return EINVAL;
  if ((mask & IBV_QP_PATH_MTU) != 0 && (wanted.path_mtu < IBV_MTU_256 || wanted.path_mtu > device.options.active_mtu)) {
    return EINVAL;
  }
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && wanted.max_rd_atomic > most) return EINVAL;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && wanted.max_dest_rd_atomic > most) return EINVAL;
  if ((mask & IBV_QP_TIMEOUT) != 0 && wanted.timeout > 31) return EINVAL;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && wanted.retry_cnt > 7) return EINVAL;
  if ((mask & IBV_QP_RNR_RETRY) != 0 && wanted.rnr_retry > 7) return EINVAL;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && wanted.min_rnr_timer > 31) return EINVAL;
  return 0;
}

void take(ibv_qp_attr& settings, const ibv_qp_attr& wanted, int mask) {
  const auto pick = [&](int bit, auto ibv_qp_attr::*field) {
    if ((mask & bit) != 0) settings.*field = wanted.*field;
  };
  pick(IBV_QP_PORT, &ibv_qp_attr::port_num);
  pick(IBV_QP_PKEY_INDEX, &ibv_qp_attr::pkey_index);
  pick(IBV_QP_ACCESS_FLAGS, &ibv_qp_attr::qp_access_flags);
  pick(IBV_QP_QKEY, &ibv_qp_attr::qkey);
  pick(IBV_QP_AV, &ibv_qp_attr::ah_attr);
  pick(IBV_QP_PATH_MTU, &ibv_qp_attr::path_mtu);
  pick(IBV_QP_DEST_QPN, &ibv_qp_attr::dest_qp_num);
  pick(IBV_QP_RQ_PSN, &ibv_qp_attr::rq_psn);
  pick(IBV_QP_SQ_PSN, &ibv_qp_attr::sq_psn);
  pick(IBV_QP_MAX_QP_RD_ATOMIC, &ibv_qp_attr::max_rd_atomic);
  pick(IBV_QP_MAX_DEST_RD_ATOMIC, &ibv_qp_attr::max_dest_rd_atomic);
  pick(IBV_QP_MIN_RNR_TIMER, &ibv_qp_attr::min_rnr_timer);
  pick(IBV_QP_TIMEOUT, &ibv_qp_attr::timeout);
  pick(IBV_QP_RETRY_CNT, &ibv_qp_attr::retry_cnt);
  pick(IBV_QP_RNR_RETRY, &ibv_qp_attr::rnr_retry);
}

/// As new: what was queued is gone without a word.
void reset(Core& core, QueuePair& pair) {
  core.remove_completions(pair.send_completions(), pair);
  core.remove_completions(pair.receive_completions(), pair);
  SendQueue& sends = pair.sends;
  sends.executed = sends.acknowledged = sends.head;
  sends.retired = sends.head;
  ReceiveQueue& receives = pair.receives;
  receives.taken = receives.head;
  receives.polled = receives.head;
  pair.stalled = pair.heard = false;
  pair.settings = {};
}

int change_state(Core& core, QueuePair& pair, const ibv_qp_attr& wanted, int mask) {
  const ibv_qp_state to = wanted.qp_state;
  if (to == IBV_QPS_ERR) {
    if (pair.now == IBV_QPS_RESET) return EINVAL;
    core.to_error(pair);
    return 0;
  }
  if (to == IBV_QPS_RESET) {
    reset(core, pair);
  } else {
    const Step* step = nullptr;
    for (const Step& candidate : kSteps) {
      if (candidate.from == pair.now && candidate.to == to) step = &candidate;
    }
    if (step == nullptr) return EINVAL;
    const int needed = pair.connected() ? step->connected : step->datagram;
    if ((mask & needed) != needed) return EINVAL;
    if (const int error = check(*pair.owner, wanted, mask); error != 0) return error;
    take(pair.settings, wanted, mask);
  }
  pair.now = to;
  pair.state = to;
  return 0;
}

int modify_qp(ibv_qp* handle, ibv_qp_attr* wanted, int mask) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const pair = static_cast<QueuePair*>(handle);
  if (!core.known(pair, "modify_qp")) return EINVAL;
  if (const int error = refused(*pair->owner, "modify_qp"); error != 0) return error;
  if ((mask & IBV_QP_STATE) == 0) return EINVAL;
  if (const int error = change_state(core, *pair, *wanted, mask); error != 0) return error;
  core.look_closer(*pair);
  if (core.by_itself) core.advance();
  return 0;
}

}  // namespace

void add_state_calls(fabric::verbs::Library& calls) { calls.modify_qp = modify_qp; }

}  // namespace railyard::verbs_double
