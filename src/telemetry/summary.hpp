/// RAILYARD_SUMMARY=1: what a process moved, as text for a person, when its contexts end.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "telemetry/reader.hpp"

namespace railyard::telemetry {

/// Of one context, or of all (empty).
std::string summary(const Snapshot& snapshot, std::string_view context = {});
/// To stderr, whatever the log's level: somebody asked for it.
void print_summary(std::span<const std::byte> bytes, std::string_view context = {});

}  // namespace railyard::telemetry
