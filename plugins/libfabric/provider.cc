/// The way in: libfabric loads this library and asks for its table.
#include <rdma/providers/fi_prov.h>

#include "domain.hpp"
#include "info.hpp"
#include "log.hpp"

namespace railyard::provider {

const char* const kProviderName = "railyard";

namespace {

// Programs built for a later libfabric may use it: what they ask is checked in fi_getinfo, not by number.
constexpr std::uint32_t kNewestInterface = FI_VERSION(2, 6);

}  // namespace

fi_provider provider{FI_VERSION(0, 1), kNewestInterface, {}, kProviderName, get_info, open_fabric, [] {}};

}  // namespace railyard::provider

extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini(void) {
  return &railyard::provider::provider;
}
