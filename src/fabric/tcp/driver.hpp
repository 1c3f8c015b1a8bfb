/// The driver of rails over kernel TCP sockets: what `fabric/open.cc` needs of it. docs/tcp.md tells the whole story.
#pragma once

#include <memory>
#include <vector>

#include "fabric/rail.hpp"

namespace railyard::fabric {

/// One offer for each network interface that is up and has an address. Loopback comes last.
Result<std::vector<RailOffer>> discover_tcp(const Settings& settings);
/// Opens a rail of its own on the offer's interface; an offer may be opened several times.
Result<std::unique_ptr<Rail>> open_tcp(const RailOffer& offer, const Settings& settings);

}  // namespace railyard::fabric
