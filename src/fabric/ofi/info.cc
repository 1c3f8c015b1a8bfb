#include "fabric/ofi/info.hpp"

#include <fmt/format.h>
#include <rdma/fi_endpoint.h>

#include <algorithm>
#include <cstring>

namespace railyard::fabric::ofi {

Result<Info> query(const Query& query) {
  Info hints(library().dupinfo(nullptr));
  if (!hints) return Error(Status::no_memory, "no memory for libfabric hints");
  hints->caps = FI_MSG | FI_RMA | query.extra_caps;
  hints->mode = kModes;
  hints->ep_attr->type = query.endpoints;
  hints->tx_attr->op_flags = query.transmit_flags;
  hints->domain_attr->mr_mode = kRegistrationModes;
  hints->domain_attr->cq_data_size = kImmediateBytes;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;     // a full queue says so instead of overrunning
  hints->domain_attr->threading = FI_THREAD_COMPLETION;  // the engine lets one thread at a time call a rail
  hints->domain_attr->data_progress = query.data_progress;
  if (!query.provider.empty()) hints->fabric_attr->prov_name = ::strdup(query.provider.c_str());

  fi_info* found = nullptr;
  const int code = library().getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found);
  if (code == -FI_ENODATA) return Info();
  if (code != 0)
    return Error(Status::io, fmt::format("libfabric could not look for providers: {}", library().strerror(-code)));
  return Info(found);
}

bool connects(const fi_info& info) {
  // All inbound links receive from one pool; a registration serves all connections.
  return info.ep_attr->type == FI_EP_MSG && info.domain_attr->max_ep_srx_ctx != 0 &&
         (info.domain_attr->mr_mode & FI_MR_ENDPOINT) == 0;
}

std::string_view core_name(std::string_view provider) { return provider.substr(0, provider.find(';')); }

std::vector<std::string> providers_here() {
  std::vector<std::string> names;
  fi_info* found = nullptr;
  if (library().getinfo(kApiVersion, nullptr, nullptr, 0, nullptr, &found) != 0) return names;
  const Info all(found);
  for (const fi_info* info = all.get(); info != nullptr; info = info->next) {
    const std::string_view name = core_name(info->fabric_attr->prov_name);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  }
  return names;
}

}  // namespace railyard::fabric::ofi
