/// The telemetry of all processes in the text format of Prometheus.
#pragma once

#include <string>

#include "top_host.hpp"

namespace railyard::tool {

std::string prometheus_text(const SeenHost& host);

}  // namespace railyard::tool
