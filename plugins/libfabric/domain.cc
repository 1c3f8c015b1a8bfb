#include "domain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "counter.hpp"
#include "endpoint.hpp"
#include "events.hpp"
#include "info.hpp"
#include "log.hpp"
#include "queue.hpp"
#include "shm/object.hpp"

namespace railyard::provider {

namespace {

/// Threads that share no completion queue or counter share no endpoint either, so nothing here, but the tables. A
/// counter of a registration is different: it moves on all endpoints.
bool needs_lock(const fi_info& info) {
  const fi_threading threading = info.domain_attr->threading;
  return threading != FI_THREAD_DOMAIN && (threading != FI_THREAD_COMPLETION || (info.caps & FI_RMA_EVENT) != 0);
}

}  // namespace

Domain::Domain(Fabric& owner, const fi_info& info)
    : fabric(owner),
      lock(needs_lock(info)),
      tables(info.domain_attr->threading == FI_THREAD_COMPLETION),
      registrations(plain_registration_mode(info.domain_attr->mr_mode),
                    info.domain_attr->threading == FI_THREAD_COMPLETION) {}

void Domain::watch_all(Watch& watch) {
  Guard guard(tables);
  watches_.push_back(&watch);
  for (Endpoint* endpoint : endpoints_) watch.add(*endpoint);
}
void Domain::unwatch_all(Watch& watch) {
  Guard guard(tables);
  watches_.erase(std::find(watches_.begin(), watches_.end(), &watch));
  if (std::find(watches_.begin(), watches_.end(), &watch) != watches_.end()) return;
  for (Endpoint* endpoint : endpoints_)
    if (!endpoint->watched_by(watch)) watch.remove(*endpoint);
}
void Domain::joined(Endpoint& endpoint) {
  Guard guard(tables);
  endpoints_.push_back(&endpoint);
  for (Watch* watch : watches_) watch->add(endpoint);
}
void Domain::leaves(Endpoint& endpoint) {
  Guard guard(tables);
  for (Watch* watch : watches_) watch->remove(endpoint);
  std::erase(endpoints_, &endpoint);
}

namespace {

int close_domain(fid* fid) {
  auto* domain = object_of<Domain>(fid);
  if (!domain->references.none())
    return refuse(-FI_EBUSY,
                  "fi_close: the domain still has endpoints, queues, counters, address vectors or registrations");
  domain->fabric.references.drop();
  delete domain;
  return 0;
}
/// An event queue may be bound; registrations are synchronous all the same.
int bind_domain(fid*, fid* to, std::uint64_t) { return to->fclass == FI_CLASS_EQ ? 0 : -FI_EINVAL; }

int endpoint_with_flags(fid_domain* domain, fi_info* info, fid_ep** endpoint, std::uint64_t flags, void* context) {
  if (flags != 0) return refuse(-FI_EBADFLAGS, fmt::format("fi_endpoint2: flags {:#x} are not offered", flags));
  return open_endpoint(domain, info, endpoint, context);
}

fi_ops domain_fid_calls{sizeof(fi_ops),
                        close_domain,
                        bind_domain,
                        not_offered<&fi_ops::control>,
                        not_offered<&fi_ops::ops_open>,
                        not_offered<&fi_ops::tostr>,
                        not_offered<&fi_ops::ops_set>};
fi_ops_domain domain_calls{sizeof(fi_ops_domain),
                           open_addresses,
                           open_queue,
                           open_endpoint,
                           not_offered<&fi_ops_domain::scalable_ep>,
                           open_counter,
                           open_poll_set,
                           not_offered<&fi_ops_domain::stx_ctx>,
                           not_offered<&fi_ops_domain::srx_ctx>,
                           query_atomic,
                           not_offered<&fi_ops_domain::query_collective>,
                           endpoint_with_flags};

int open_domain(fid_fabric* fid, fi_info* info, fid_domain** result, void* context) {
  if (info == nullptr || info->domain_attr == nullptr)
    return refuse(-FI_EINVAL, "fi_domain needs the fi_info that fi_getinfo answered, with its domain_attr");
  if (info->domain_attr->name != nullptr && std::strcmp(info->domain_attr->name, kProviderName) != 0)
    return refuse(-FI_EINVAL,
                  fmt::format("there is no domain '{}' here, only '{}'", info->domain_attr->name, kProviderName));
  Fabric& fabric = *object_of<Fabric>(fid);
  shm::remove_dead_objects(shm::kDefaultDirectory);
  auto domain = std::make_unique<Domain>(fabric, *info);
  domain->fid.fid.fclass = FI_CLASS_DOMAIN;
  domain->fid.fid.context = context;
  domain->fid.fid.ops = &domain_fid_calls;
  domain->fid.ops = &domain_calls;
  domain->fid.mr = &registration_calls;
  fabric.references.add();
  *result = &domain.release()->fid;
  return 0;
}
int domain_with_flags(fid_fabric* fabric, fi_info* info, fid_domain** domain, std::uint64_t flags, void* context) {
  if (flags != 0) return refuse(-FI_EBADFLAGS, fmt::format("fi_domain2: flags {:#x} are not offered", flags));
  return open_domain(fabric, info, domain, context);
}

int close_fabric(fid* fid) {
  auto* fabric = object_of<Fabric>(fid);
  if (!fabric->references.none()) return refuse(-FI_EBUSY, "fi_close: the fabric still has domains or event queues");
  delete fabric;
  return 0;
}

fi_ops fabric_fid_calls{sizeof(fi_ops),
                        close_fabric,
                        not_offered<&fi_ops::bind>,
                        not_offered<&fi_ops::control>,
                        not_offered<&fi_ops::ops_open>,
                        not_offered<&fi_ops::tostr>,
                        not_offered<&fi_ops::ops_set>};
fi_ops_fabric fabric_calls{sizeof(fi_ops_fabric),
                           open_domain,
                           not_offered<&fi_ops_fabric::passive_ep>,
                           open_events,
                           not_offered<&fi_ops_fabric::wait_open>,
                           try_wait,
                           domain_with_flags};

/// True when the watch's descriptor may be slept on.
bool may_sleep(Domain& domain, Watch& watch, bool& armed, const auto& nothing_there) {
  Guard guard(domain.lock);
  watch.progress();
  if (!nothing_there()) return false;
  watch.waiting.clear();
  armed = true;
  if (watch.fall_asleep()) return true;
  armed = false;
  return false;
}

}  // namespace

int try_wait(fid_fabric*, fid** fids, int count) {
  for (int index = 0; index < count; ++index) {
    bool ready = false;
    switch (fids[index]->fclass) {
      case FI_CLASS_EQ:
        ready = !object_of<Events>(fids[index])->pending();
        break;
      case FI_CLASS_CQ: {
        auto* queue = object_of<Queue>(fids[index]);
        ready = may_sleep(queue->domain, queue->watch, queue->armed,
                          [queue] { return queue->empty() && !queue->signalled; });
        break;
      }
      case FI_CLASS_CNTR: {
        auto* counter = object_of<Counter>(fids[index]);
        const std::uint64_t before = counter->value.load() + counter->errors.load();
        ready = may_sleep(counter->domain, counter->watch, counter->armed,
                          [=] { return counter->value.load() + counter->errors.load() == before; });
        break;
      }
      default:
        return refuse(-FI_EINVAL, "fi_trywait takes completion queues, counters and event queues");
    }
    if (!ready) return -FI_EAGAIN;
  }
  return 0;
}

int open_fabric(fi_fabric_attr* attributes, fid_fabric** result, void* context) {
  if (attributes == nullptr || attributes->name == nullptr || std::strcmp(attributes->name, kProviderName) != 0)
    return -FI_ENODATA;
  auto fabric = std::make_unique<Fabric>();
  fabric->fid.fid.fclass = FI_CLASS_FABRIC;
  fabric->fid.fid.context = context;
  fabric->fid.fid.ops = &fabric_fid_calls;
  fabric->fid.ops = &fabric_calls;
  fabric->fid.api_version = attributes->api_version;
  *result = &fabric.release()->fid;
  return 0;
}

}  // namespace railyard::provider
