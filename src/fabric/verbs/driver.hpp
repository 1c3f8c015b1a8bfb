/// The driver of rails over ibverbs, as `fabric/open.cc` knows it.
#pragma once

#include <memory>
#include <vector>

#include "fabric/rail.hpp"

namespace railyard::fabric {

/// One offer for each port that is up.
Result<std::vector<RailOffer>> discover_verbs(const Settings& settings);
Result<std::unique_ptr<Rail>> open_verbs(const RailOffer& offer, const Settings& settings);

}  // namespace railyard::fabric
