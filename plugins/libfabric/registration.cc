#include "registration.hpp"

#include <fmt/format.h>

#include "counter.hpp"
#include "domain.hpp"
#include "log.hpp"

namespace railyard::provider {

bool Registrations::add(Registration& registration) {
  Guard guard(lock_);
  return by_key_.emplace(registration.fid.key, &registration).second;
}

void Registrations::remove(const Registration& registration) {
  Guard guard(lock_);
  by_key_.erase(registration.fid.key);
  if (last_ == &registration) last_ = nullptr;
}

Registration* Registrations::find(std::uint64_t key, std::uint64_t address, std::uint64_t bytes, std::uint64_t access,
                                  const struct ::fid* endpoint) {
  Guard guard(lock_);
  if (last_ == nullptr || last_key_ != key) {
    const auto it = by_key_.find(key);
    if (it == by_key_.end()) return nullptr;
    last_ = it->second;
    last_key_ = key;
  }
  const Registration& found = *last_;
  const std::uint64_t offset = address - found.base;
  const bool inside = address >= found.base && offset <= found.bytes && bytes <= found.bytes - offset;
  const bool allowed =
      found.enabled && (found.access & access) == access && (found.endpoint == nullptr || found.endpoint == endpoint);
  return inside && allowed ? last_ : nullptr;
}

namespace {

constexpr std::uint64_t kAccess = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

int close_registration(fid* fid) {
  auto* registration = object_of<Registration>(fid);
  Domain& domain = *registration->domain;
  {
    Guard guard(domain.lock);
    domain.registrations.remove(*registration);
    if (registration->counter != nullptr) {
      domain.unwatch_all(registration->counter->watch);
      registration->counter->references.drop();
    }
  }
  domain.references.drop();
  delete registration;
  return 0;
}

int bind_registration(fid* fid, struct fid* to, std::uint64_t flags) {
  auto* registration = object_of<Registration>(fid);
  Domain& domain = *registration->domain;
  Guard guard(domain.lock);
  if (to->fclass == FI_CLASS_EP) {
    if ((domain.registrations.mode() & FI_MR_ENDPOINT) == 0)
      return refuse(-FI_EINVAL, "fi_mr_bind to an endpoint: FI_MR_ENDPOINT is not in the domain's mr_mode");
    if (registration->enabled || registration->endpoint != nullptr)
      return refuse(-FI_EOPBADSTATE, "fi_mr_bind: the registration is bound already");
    registration->endpoint = to;
    return 0;
  }
  if (to->fclass != FI_CLASS_CNTR) return refuse(-FI_EINVAL, "fi_mr_bind takes an endpoint or a counter");
  if (flags != FI_REMOTE_WRITE) return refuse(-FI_EBADFLAGS, "fi_mr_bind of a counter takes FI_REMOTE_WRITE alone");
  if (registration->counter != nullptr) return refuse(-FI_EINVAL, "fi_mr_bind: the registration has a counter already");
  registration->counter = object_of<Counter>(to);
  registration->counter->references.add();
  domain.watch_all(registration->counter->watch);
  return 0;
}

int control_registration(fid* fid, int command, void*) {
  auto* registration = object_of<Registration>(fid);
  if (command != FI_ENABLE) return -FI_ENOSYS;
  const bool needs_endpoint = (registration->domain->registrations.mode() & FI_MR_ENDPOINT) != 0;
  if (needs_endpoint && registration->endpoint == nullptr)
    return refuse(-FI_EOPBADSTATE, "fi_mr_enable before fi_mr_bind: FI_MR_ENDPOINT is in the domain's mr_mode");
  registration->enabled = true;
  return 0;
}

fi_ops registration_fid_calls{sizeof(fi_ops),
                              close_registration,
                              bind_registration,
                              control_registration,
                              not_offered<&fi_ops::ops_open>,
                              not_offered<&fi_ops::tostr>,
                              not_offered<&fi_ops::ops_set>};

int register_attributes(fid* fid, const fi_mr_attr* attributes, std::uint64_t flags, fid_mr** result) {
  if (fid->fclass != FI_CLASS_DOMAIN || attributes == nullptr || attributes->mr_iov == nullptr)
    return refuse(-FI_EINVAL, "memory is registered with a domain, and has an address");
  if (attributes->iov_count != 1)
    return refuse(-FI_EINVAL,
                  fmt::format("a registration of {} iov entries: mr_iov_limit is 1", attributes->iov_count));
  if (attributes->iface != FI_HMEM_SYSTEM) return refuse(-FI_ENOSYS, "only host memory can be registered");
  if ((attributes->access & ~kAccess) != 0)
    return refuse(-FI_EBADFLAGS, fmt::format("unknown access {:#x} in a registration", attributes->access & ~kAccess));
  if ((flags & ~static_cast<std::uint64_t>(FI_RMA_EVENT | FI_RMA_PMEM)) != 0)
    return refuse(-FI_EBADFLAGS, fmt::format("flags {:#x} of a registration are not offered", flags));
  Domain& domain = *object_of<Domain>(fid);
  const int mode = domain.registrations.mode();
  auto registration = std::make_unique<Registration>();
  registration->domain = &domain;
  registration->memory = static_cast<std::byte*>(attributes->mr_iov[0].iov_base);
  registration->bytes = attributes->mr_iov[0].iov_len;
  registration->access = attributes->access;
  const bool by_pointer = (mode & FI_MR_VIRT_ADDR) != 0;
  registration->base = by_pointer ? reinterpret_cast<std::uintptr_t>(registration->memory) : attributes->offset;
  registration->enabled = (mode & FI_MR_ENDPOINT) == 0 && (flags & FI_RMA_EVENT) == 0;
  registration->fid.fid.fclass = FI_CLASS_MR;
  registration->fid.fid.context = attributes->context;
  registration->fid.fid.ops = &registration_fid_calls;
  registration->fid.mem_desc = registration.get();
  Guard guard(domain.lock);
  registration->fid.key = (mode & FI_MR_PROV_KEY) != 0 ? domain.registrations.next_key() : attributes->requested_key;
  if (!domain.registrations.add(*registration))
    return refuse(-FI_ENOKEY, fmt::format("key {:#x} belongs to another registration", registration->fid.key));
  domain.references.add();
  *result = &registration.release()->fid;
  return 0;
}

int register_iov(fid* fid, const iovec* iov, std::size_t count, std::uint64_t access, std::uint64_t offset,
                 std::uint64_t key, std::uint64_t flags, fid_mr** result, void* context) {
  fi_mr_attr attributes{};
  attributes.mr_iov = iov;
  attributes.iov_count = count;
  attributes.access = access;
  attributes.offset = offset;
  attributes.requested_key = key;
  attributes.context = context;
  return register_attributes(fid, &attributes, flags, result);
}

int register_one(fid* fid, const void* memory, std::size_t bytes, std::uint64_t access, std::uint64_t offset,
                 std::uint64_t key, std::uint64_t flags, fid_mr** result, void* context) {
  const iovec entry{const_cast<void*>(memory), bytes};
  return register_iov(fid, &entry, 1, access, offset, key, flags, result, context);
}

}  // namespace

fi_ops_mr registration_calls{sizeof(fi_ops_mr), register_one, register_iov, register_attributes};

}  // namespace railyard::provider
