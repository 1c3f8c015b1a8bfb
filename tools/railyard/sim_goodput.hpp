/// `railyard sim --goodput`: what arrives in a large world while its rails fail and come back.
#pragma once

#include <string>

#include "sim/goodput.hpp"

namespace railyard::tool {

/// Measures, prints, and writes what is asked for; an empty name is not. Returns the exit code.
int run_goodput_command(const sim::GoodputOptions& options, const std::string& json, const std::string& svg);

std::string goodput_picture(const sim::GoodputOptions& options, const sim::Goodput& result);

}  // namespace railyard::tool
