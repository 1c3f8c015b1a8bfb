/// Queue pairs and address handles: made and destroyed.
#include <cerrno>

#include "doubles/verbs/core.hpp"
#include "doubles/verbs/gpu_calls.hpp"

namespace railyard::verbs_double {

namespace {

constexpr std::uint32_t kVendor = 0xfa4e;
constexpr std::uint32_t kConnectionOptions = 0x5;

Kind kind_of(ibv_qp_type type) { return type == IBV_QPT_RC ? Kind::connected_pair : Kind::datagram_pair; }

bool fits(const Limits& limits, const ibv_qp_init_attr& wanted) {
  const ibv_qp_cap& sizes = wanted.cap;
  const auto most = static_cast<std::uint32_t>(limits.max_qp_wr);
  const auto sges = static_cast<std::uint32_t>(limits.max_sge);
  if (sizes.max_send_wr > most || sizes.max_send_sge > sges || sizes.max_inline_data > limits.max_inline_data) {
    return false;
  }
  return wanted.srq != nullptr || (sizes.max_recv_wr <= most && sizes.max_recv_sge <= sges);
}

/// The queues it names must be there, on the same device.
bool queues_known(Core& core, const ibv_qp_init_attr& wanted, const ibv_context* context) {
  for (const ibv_cq* queue : {wanted.send_cq, wanted.recv_cq}) {
    if (queue == nullptr || !core.known(static_cast<const CompletionQueue*>(queue), "create_qp") ||
        queue->context != context) {
      return false;
    }
  }
  if (wanted.srq == nullptr) return true;
  return core.known(static_cast<const SharedReceiveQueue*>(wanted.srq), "create_qp") && wanted.srq->context == context;
}

ibv_qp* create_qp(ibv_pd* handle, ibv_qp_init_attr* wanted) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const domain = static_cast<Domain*>(handle);
  if (!core.known(domain, "create_qp")) return no<ibv_qp>(EINVAL);
  Device& device = device_of(domain->context);
  if (const int error = refused(device, "create_qp"); error != 0) return no<ibv_qp>(error);
  if (wanted->qp_type != IBV_QPT_RC && wanted->qp_type != IBV_QPT_UD) return no<ibv_qp>(EOPNOTSUPP);
  if (!fits(device.options.limits, *wanted) || !queues_known(core, *wanted, domain->context)) {
    return no<ibv_qp>(EINVAL);
  }
  const Kind kind = kind_of(wanted->qp_type);
  if (!core.admit(device, kind)) return nullptr;
  auto* const pair = new QueuePair{};
  pair->context = domain->context;
  pair->qp_context = wanted->qp_context;
  pair->pd = domain;
  pair->send_cq = wanted->send_cq;
  pair->recv_cq = wanted->recv_cq;
  pair->srq = wanted->srq;
  pair->qp_num = device.next_qp_num++;
  pair->state = IBV_QPS_RESET;
  pair->qp_type = wanted->qp_type;
  pair->owner = &device;
  pair->signals_all = wanted->sq_sig_all != 0;
  pair->sends.open(wanted->cap.max_send_wr, wanted->cap.max_inline_data);
  if (wanted->srq == nullptr) {
    pair->receives.open(wanted->cap.max_recv_wr);
  } else {
    wanted->cap.max_recv_wr = wanted->cap.max_recv_sge = 0;
    ++static_cast<SharedReceiveQueue*>(wanted->srq)->users;
  }
  ++pair->send_completions().users;
  ++pair->receive_completions().users;
  ++domain->children;
  device.pairs.emplace(pair->qp_num, pair);
  core.born(device, kind, pair);
  return pair;
}

int destroy_qp(ibv_qp* handle) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const pair = static_cast<QueuePair*>(handle);
  if (!core.known(pair, "destroy_qp")) return EINVAL;
  if (const int error = core.wanted_failure("destroy_qp"); error != 0) return error;
  Device& device = *pair->owner;
  core.forget_events(static_cast<DoubleContext&>(*pair->context), pair, "destroy_qp");
  if (device.options.removes_completions) {
    core.remove_completions(pair->send_completions(), *pair);
    if (pair->recv_cq != pair->send_cq) core.remove_completions(pair->receive_completions(), *pair);
  }
  if (pair->queued) {
    std::erase(core.active, pair);
    core.waiting.fetch_sub(1, std::memory_order_relaxed);
  }
  --pair->send_completions().users;
  --pair->receive_completions().users;
  if (pair->srq != nullptr) --static_cast<SharedReceiveQueue*>(pair->srq)->users;
  --static_cast<Domain*>(pair->pd)->children;
  // Its memory accesses are over. (One that is connected to itself only reads.)
  if (const GpuCalls gpus; gpus && pair->connected() && pair->settings.dest_qp_num != pair->qp_num) gpus.drain(&device);
  pair->plain = false;
  pair->now = IBV_QPS_UNKNOWN;
  pair->sends.release();
  pair->receives.release();
  device.pairs.erase(pair->qp_num);
  core.bury(device, kind_of(pair->qp_type), pair);
  return 0;
}

ibv_ah* create_ah(ibv_pd* handle, ibv_ah_attr* attributes) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const domain = static_cast<Domain*>(handle);
  if (!core.known(domain, "create_ah")) return no<ibv_ah>(EINVAL);
  Device& device = device_of(domain->context);
  if (const int error = refused(device, "create_ah"); error != 0) return no<ibv_ah>(error);
  if (!address_valid(device, *attributes)) return no<ibv_ah>(EINVAL);
  if (!core.admit(device, Kind::address_handle)) return nullptr;
  auto* const address = new AddressHandle{};
  address->context = domain->context;
  address->pd = domain;
  address->attributes = *attributes;
  ++domain->children;
  core.born(device, Kind::address_handle, address);
  return address;
}

int destroy_ah(ibv_ah* handle) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const address = static_cast<AddressHandle*>(handle);
  if (!core.known(address, "destroy_ah")) return EINVAL;
  if (const int error = core.wanted_failure("destroy_ah"); error != 0) return error;
  --static_cast<Domain*>(address->pd)->children;
  core.bury(device_of(address->context), Kind::address_handle, address);
  return 0;
}

int query_ece(ibv_qp* handle, ibv_ece* options) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const pair = static_cast<QueuePair*>(handle);
  if (!core.known(pair, "query_ece")) return EINVAL;
  if (const int error = refused(*pair->owner, "query_ece"); error != 0) return error;
  if (!pair->owner->options.ece) return EOPNOTSUPP;
  *options = {.vendor_id = kVendor, .options = kConnectionOptions, .comp_mask = 0};
  return 0;
}

int set_ece(ibv_qp* handle, ibv_ece* options) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const pair = static_cast<QueuePair*>(handle);
  if (!core.known(pair, "set_ece")) return EINVAL;
  if (const int error = refused(*pair->owner, "set_ece"); error != 0) return error;
  if (!pair->owner->options.ece) return EOPNOTSUPP;
  // Only between the two states where the ends agree.
  const bool agreeing = pair->now == IBV_QPS_RESET || pair->now == IBV_QPS_INIT;
  return agreeing && options->vendor_id == kVendor && options->comp_mask == 0 ? 0 : EINVAL;
}

}  // namespace

bool address_valid(const Device& device, const ibv_ah_attr& address) {
  if (address.port_num < 1 || address.port_num > device.ports.size()) return false;
  if (address.is_global == 0) return device.options.infiniband && address.dlid != 0;
  return address.grh.sgid_index < device.ports[address.port_num - 1u].gids.size();
}

void add_pair_calls(fabric::verbs::Library& calls) {
  calls.create_qp = create_qp;
  calls.destroy_qp = destroy_qp;
  calls.query_ece = query_ece;
  calls.set_ece = set_ece;
  calls.create_ah = create_ah;
  calls.destroy_ah = destroy_ah;
}

}  // namespace railyard::verbs_double
