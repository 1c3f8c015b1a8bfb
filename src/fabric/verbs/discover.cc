#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "fabric/interface_filter.hpp"
#include "fabric/verbs/driver.hpp"
#include "fabric/verbs/port.hpp"

namespace railyard::fabric {

Result<std::vector<RailOffer>> discover_verbs(const Settings& settings) {
  auto found = verbs::list_ports(settings);
  if (!found) return std::move(found.error());
  const InterfaceFilter filter(settings.interfaces);
  std::vector<RailOffer> offers;
  for (const verbs::Port& port : found->ports) {
    // A device's name stands for all its ports.
    const bool device = filter.takes(port.device);
    const bool itself = filter.takes(port.name());
    if (settings.interfaces.starts_with('^') ? !device || !itself : !device && !itself) continue;
    RailOffer offer;
    offer.driver = offer.provider = "verbs";
    offer.domain = port.name();
    offer.fabric = port.fabric;
    offer.line_rate = port.rate;
    offer.loopback = port.loopback;
    offer.device_memory = port.dma_bufs;
    offer.detail = fmt::format("{}, GID {} ({}), partition {}, MTU {}", port.infiniband ? "InfiniBand" : "RoCE v2",
                               port.gid_index, port.gid_text, port.pkey_index, 128 << port.mtu);
    offer.driver_data = std::make_shared<verbs::Port>(port);
    offers.push_back(std::move(offer));
  }
  if (!offers.empty()) return offers;
  const std::string unfit = found->unfit.empty() ? "" : fmt::format(" (not fit: {})", fmt::join(found->unfit, ", "));
  if (found->ports.empty())
    return Error(Status::not_found, fmt::format("no RDMA port here can carry a rail{}: is the NIC's driver loaded "
                                                "(`rdma link`)? RAILYARD_DRIVER=ofi does without",
                                                unfit));
  std::vector<std::string> names;
  for (const verbs::Port& port : found->ports) names.push_back(port.name());
  return Error(Status::not_found, fmt::format("RAILYARD_INTERFACES={} leaves no rail: there are {}{}",
                                              settings.interfaces, fmt::join(names, ", "), unfit));
}

}  // namespace railyard::fabric
