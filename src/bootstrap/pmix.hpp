/// PMIx: ranks that a cluster's own launcher started (mpirun, prun, srun) find each other through it.
#pragma once

#include <cstdint>
#include <memory>

#include "railyard/bootstrap.hpp"

namespace railyard::bootstrap {

/// Whether a PMIx launcher started this process.
bool started_by_pmix();

/// `timeout_ns`: by default for each call. `unsupported` in a build without PMIx.
Result<std::unique_ptr<Bootstrap>> open_pmix(std::int64_t timeout_ns);

}  // namespace railyard::bootstrap
