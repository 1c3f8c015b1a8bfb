/// The part of `railyard info` on GPUs: which rails serve which.
#pragma once

#include <string>

#include "json.hpp"
#include "topology/gpu_rails.hpp"

namespace railyard::tool {

/// Empty where there is no GPU.
std::string gpu_table_text(const topology::GpuTable& table);
/// The field "gpus", an array.
void write_gpus(JsonWriter& json, const topology::GpuTable& table);

}  // namespace railyard::tool
