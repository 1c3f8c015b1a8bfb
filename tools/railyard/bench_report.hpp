/// The figures of a bench as a table and as JSON.
#pragma once

#include <string>

#include "bench_match.hpp"
#include "railyard/settings.hpp"

namespace railyard::tool {

std::string bench_table(const BenchOptions& options, const Settings& settings, const BenchReport& report);
/// {"test", "driver", "provider", "rails", "rows": [{"bytes", "unit", "ours", "raw", "ratio"}]}: scripts rely on it.
std::string bench_json(const BenchOptions& options, const Settings& settings, const BenchReport& report);

}  // namespace railyard::tool
