/// What this test program does when it is started as one rank of a job rather than to run tests.
#pragma once

#include <string_view>

namespace railyard::bootstrap {

/// Runs the role of that name (`--role=NAME`) and returns the exit code.
int run_role(std::string_view name);

}  // namespace railyard::bootstrap
