/// A world of one rank: nobody to find.
#pragma once

#include <memory>

#include "railyard/bootstrap.hpp"

namespace railyard::bootstrap {

/// Rank 0 of 1. Never fails.
std::unique_ptr<Bootstrap> open_single();

}  // namespace railyard::bootstrap
