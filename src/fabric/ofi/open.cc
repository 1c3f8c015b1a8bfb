/// Opens a rail with the endpoints that discovery chose.
#include "base/shared_library.hpp"
#include "fabric/ofi/connected.hpp"
#include "fabric/ofi/datagram.hpp"
#include "fabric/ofi/driver.hpp"

namespace railyard::fabric {

Result<std::unique_ptr<Rail>> open_ofi(const RailOffer& offer, const Settings& settings) {
  const auto* choice = static_cast<const ofi::Choice*>(offer.driver_data.get());
  if (choice == nullptr) return Error(Status::invalid, "this rail offer does not come from the ofi driver");
  const KeepSignals keep;  // providers may touch the hardware only now
  return choice->info->ep_attr->type == FI_EP_MSG
             ? ofi::ConnectedRail::open(offer, *choice, std::as_bytes(std::span(settings.job_key)))
             : ofi::DatagramRail::open(offer, *choice);
}

}  // namespace railyard::fabric
