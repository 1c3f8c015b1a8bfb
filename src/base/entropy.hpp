/// Random bytes from the system, for keys, nonces and identities.
#pragma once

#include <cstddef>
#include <span>

#include "railyard/result.hpp"

namespace railyard {

/// Fills `bytes` with random bytes fit for secrets.
Result<void> fill_random(std::span<std::byte> bytes);

}  // namespace railyard
