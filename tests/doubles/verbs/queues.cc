/// Protection domains, completion queues and shared receive queues.
#include <cerrno>

#include "doubles/verbs/core.hpp"

namespace railyard::verbs_double {

namespace {

ibv_pd* alloc_pd(ibv_context* handle) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const context = static_cast<DoubleContext*>(handle);
  if (!core.known(context, "alloc_pd")) return no<ibv_pd>(EINVAL);
  Device& device = *context->owner;
  if (const int error = refused(device, "alloc_pd"); error != 0) return no<ibv_pd>(error);
  if (!core.admit(device, Kind::domain)) return nullptr;
  auto* const domain = new Domain{};
  domain->context = context;
  ++context->children;
  core.born(device, Kind::domain, domain);
  return domain;
}

int dealloc_pd(ibv_pd* handle) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const domain = static_cast<Domain*>(handle);
  if (!core.known(domain, "dealloc_pd")) return EINVAL;
  if (const int error = core.wanted_failure("dealloc_pd"); error != 0) return error;
  if (domain->children != 0) return EBUSY;
  auto& context = static_cast<DoubleContext&>(*domain->context);
  --context.children;
  core.bury(*context.owner, Kind::domain, domain);
  return 0;
}

ibv_cq* create_cq(ibv_context* handle, int entries, void* user, ibv_comp_channel* channel, int vector) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const context = static_cast<DoubleContext*>(handle);
  if (!core.known(context, "create_cq")) return no<ibv_cq>(EINVAL);
  Device& device = *context->owner;
  if (const int error = refused(device, "create_cq"); error != 0) return no<ibv_cq>(error);
  if (entries < 1 || entries > device.options.limits.max_cqe || channel != nullptr || vector != 0) {
    return no<ibv_cq>(EINVAL);
  }
  if (!core.admit(device, Kind::completion_queue)) return nullptr;
  auto* const queue = new CompletionQueue{};
  queue->context = context;
  queue->cq_context = user;
  queue->cqe = entries;
  queue->owner = &device;
  queue->ring.open(static_cast<std::uint32_t>(entries));
  ++context->children;
  core.born(device, Kind::completion_queue, queue);
  core.completion_queues.insert(queue);
  core.look_closer();
  return queue;
}

int destroy_cq(ibv_cq* handle) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const queue = static_cast<CompletionQueue*>(handle);
  if (!core.known(queue, "destroy_cq")) return EINVAL;
  if (const int error = core.wanted_failure("destroy_cq"); error != 0) return error;
  if (queue->users != 0) return EBUSY;
  auto& context = static_cast<DoubleContext&>(*queue->context);
  core.forget_events(context, queue, "destroy_cq");
  --context.children;
  queue->plain = false;
  queue->ring.release();
  core.completion_queues.erase(queue);
  core.bury(*queue->owner, Kind::completion_queue, queue);
  return 0;
}

ibv_srq* create_srq(ibv_pd* handle, ibv_srq_init_attr* attributes) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const domain = static_cast<Domain*>(handle);
  if (!core.known(domain, "create_srq")) return no<ibv_srq>(EINVAL);
  Device& device = device_of(domain->context);
  if (const int error = refused(device, "create_srq"); error != 0) return no<ibv_srq>(error);
  const Limits& limits = device.options.limits;
  const ibv_srq_attr& wanted = attributes->attr;
  if (wanted.max_wr == 0 || wanted.max_wr > static_cast<std::uint32_t>(limits.max_srq_wr) ||
      wanted.max_sge > static_cast<std::uint32_t>(limits.max_sge)) {
    return no<ibv_srq>(EINVAL);
  }
  if (!core.admit(device, Kind::shared_receive_queue)) return nullptr;
  auto* const queue = new SharedReceiveQueue{};
  queue->context = domain->context;
  queue->srq_context = attributes->srq_context;
  queue->pd = domain;
  queue->owner = &device;
  queue->queue.open(wanted.max_wr);
  ++domain->children;
  core.born(device, Kind::shared_receive_queue, queue);
  core.shared_queues.insert(queue);
  core.look_closer();
  return queue;
}

int destroy_srq(ibv_srq* handle) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const queue = static_cast<SharedReceiveQueue*>(handle);
  if (!core.known(queue, "destroy_srq")) return EINVAL;
  if (const int error = core.wanted_failure("destroy_srq"); error != 0) return error;
  if (queue->users != 0) return EBUSY;
  --static_cast<Domain*>(queue->pd)->children;
  queue->plain = false;
  queue->queue.release();
  core.shared_queues.erase(queue);
  core.bury(*queue->owner, Kind::shared_receive_queue, queue);
  return 0;
}

}  // namespace

void add_queue_calls(fabric::verbs::Library& calls) {
  calls.alloc_pd = alloc_pd;
  calls.dealloc_pd = dealloc_pd;
  calls.create_cq = create_cq;
  calls.destroy_cq = destroy_cq;
  calls.create_srq = create_srq;
  calls.destroy_srq = destroy_srq;
}

}  // namespace railyard::verbs_double
