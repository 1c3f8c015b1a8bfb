/// The libfabric driver: what `fabric/open.cc` needs of it.
#pragma once

#include <memory>
#include <vector>

#include "fabric/rail.hpp"

namespace railyard::fabric {

/// One offer per NIC or interface of the provider that the settings name, or of the best one found. Loopback comes
/// last.
Result<std::vector<RailOffer>> discover_ofi(const Settings& settings);
/// Opens a rail of its own on the offer's NIC; an offer may be opened several times.
Result<std::unique_ptr<Rail>> open_ofi(const RailOffer& offer, const Settings& settings);

}  // namespace railyard::fabric
