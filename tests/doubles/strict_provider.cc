/// What libfabric loads: the provider, its offers, fabrics and domains.
#include <rdma/providers/fi_prov.h>

#include <cstdlib>
#include <cstring>

#include "doubles/strict.hpp"

namespace strict {

namespace {

struct InfoFreer {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoFreer>;

void rename(fi_info& info, const char* provider) {
  std::free(info.fabric_attr->prov_name);
  info.fabric_attr->prov_name = ::strdup(provider);
}

int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags, const fi_info* hints,
             fi_info** info) {
  // The utility providers ask whether they can sit on top of this one: they cannot.
  constexpr std::uint64_t kCoreProviderOnly = std::uint64_t{1} << 59;
  if ((flags & kCoreProviderOnly) != 0) return -FI_ENODATA;
  Info inner_hints(hints == nullptr ? fi_allocinfo() : fi_dupinfo(hints));
  if (!inner_hints) return -FI_ENOMEM;
  if (hints == nullptr) {
    inner_hints->caps = FI_MSG | FI_RMA;
  } else {
    if (hints->ep_attr != nullptr && hints->ep_attr->type != FI_EP_UNSPEC && hints->ep_attr->type != FI_EP_RDM)
      return -FI_ENODATA;
    if ((hints->mode & kModes) != kModes) return -FI_ENODATA;
    if (hints->domain_attr == nullptr || (hints->domain_attr->mr_mode & kRegistrationModes) != kRegistrationModes)
      return -FI_ENODATA;
  }
  inner_hints->mode = 0;
  inner_hints->ep_attr->type = FI_EP_RDM;
  inner_hints->domain_attr->mr_mode = 0;
  rename(*inner_hints, kInner);
  const int code = fi_getinfo(version, node, service, flags, inner_hints.get(), info);
  if (code != 0) return code;
  for (fi_info* entry = *info; entry != nullptr; entry = entry->next) {
    rename(*entry, "strict");
    entry->mode = kModes;
    entry->domain_attr->mr_mode = kRegistrationModes;
  }
  return 0;
}

int refuse_bind(fid* /*object*/, fid* /*other*/, std::uint64_t /*flags*/) { return -FI_ENOSYS; }
int refuse_control(fid* /*object*/, int /*command*/, void* /*argument*/) { return -FI_ENOSYS; }
int refuse_open(fid* /*object*/, const char* /*name*/, std::uint64_t /*flags*/, void** /*operations*/,
                void* /*context*/) {
  return -FI_ENOSYS;
}

int close_fabric(fid* object) {
  auto* const fabric = outer<Fabric>(object);
  if (!dies(fabric, "fabric")) return -FI_EINVAL;
  return fi_close(&fabric->inner->fid);
}

int close_domain(fid* object) {
  auto* const domain = outer<Domain>(object);
  if (alive(domain) && domain->children != 0)
    return breach(-FI_EBUSY, "domain closed before " + std::to_string(domain->children) + " of its objects");
  if (!dies(domain, "domain")) return -FI_EINVAL;
  fi_freeinfo(domain->inner_info);
  domain->inner_info = nullptr;
  return 0;
}

fi_ops* fabric_object_operations() {
  static fi_ops operations = [] {
    fi_ops made{};
    made.size = sizeof(made);
    made.close = close_fabric;
    made.bind = refuse_bind;
    made.control = refuse_control;
    made.ops_open = refuse_open;
    return made;
  }();
  return &operations;
}

fi_ops* domain_object_operations() {
  static fi_ops operations = [] {
    fi_ops made{};
    made.size = sizeof(made);
    made.close = close_domain;
    made.bind = refuse_bind;
    made.control = refuse_control;
    made.ops_open = refuse_open;
    return made;
  }();
  return &operations;
}

int open_fabric(fi_fabric_attr* attributes, fid_fabric** result, void* context) {
  fi_fabric_attr inner_attributes = *attributes;
  inner_attributes.prov_name = const_cast<char*>(kInner);
  inner_attributes.fabric = nullptr;
  auto fabric = std::make_unique<Fabric>();
  if (const int code = fi_fabric(&inner_attributes, &fabric->inner, nullptr); code != 0) return code;
  static fi_ops_fabric operations = [] {
    fi_ops_fabric made{};
    made.size = sizeof(made);
    made.domain = open_domain;
    return made;
  }();
  fabric->fid.fid.fclass = FI_CLASS_FABRIC;
  fabric->fid.fid.context = context;
  fabric->fid.fid.ops = fabric_object_operations();
  fabric->fid.ops = &operations;
  fabric->fid.api_version = FI_VERSION(1, 17);
  born(fabric.get());
  *result = &fabric.release()->fid;
  return 0;
}

}  // namespace

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** result, void* context) {
  auto domain = std::make_unique<Domain>();
  domain->fabric = outer<Fabric>(fabric);
  domain->inner_info = fi_dupinfo(info);
  if (domain->inner_info == nullptr) return -FI_ENOMEM;
  rename(*domain->inner_info, kInner);
  domain->inner_info->mode = 0;
  domain->inner_info->domain_attr->mr_mode = 0;
  static fi_ops_domain operations = [] {
    fi_ops_domain made{};
    made.size = sizeof(made);
    made.av_open = open_addresses;
    made.cq_open = open_queue;
    made.endpoint = open_endpoint;
    return made;
  }();
  domain->fid.fid.fclass = FI_CLASS_DOMAIN;
  domain->fid.fid.context = context;
  domain->fid.fid.ops = domain_object_operations();
  domain->fid.ops = &operations;
  domain->fid.mr = registration_operations();
  born(domain.get());
  *result = &domain.release()->fid;
  return 0;
}

}  // namespace strict

extern "C" __attribute__((visibility("default"))) struct fi_provider* fi_prov_ini(void) {
  static fi_provider provider = [] {
    fi_provider made{};
    made.version = FI_VERSION(1, 0);
    made.fi_version = FI_VERSION(2, 6);  // high: libfabric skips a provider older than what an application asks for
    made.name = "strict";
    made.getinfo = strict::get_info;
    made.fabric = strict::open_fabric;
    made.cleanup = [] {};
    return made;
  }();
  return &provider;
}
