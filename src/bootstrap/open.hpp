/// Chooses how this process finds the other ranks.
#pragma once

#include <memory>

#include "railyard/bootstrap.hpp"
#include "railyard/settings.hpp"

namespace railyard {

/// What RAILYARD_BOOTSTRAP says; where it says nothing: the rendezvous if an address is set, else PMIx if its launcher
/// started this process, else a world of one. Returns when all ranks are there.
Result<std::unique_ptr<Bootstrap>> open_bootstrap(const Settings& settings);

}  // namespace railyard
