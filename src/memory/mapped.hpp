/// Whether memory is there: the check that turns a bad pointer into an error instead of a crash or a late failure.
#pragma once

#include <cstddef>
#include <span>

#include "railyard/result.hpp"

namespace railyard::memory {

std::size_t page_bytes() noexcept;

/// Fails with `invalid` where a page of the range is not mapped or its ends cannot be read. Costs system calls: for
/// registration, not for every operation.
Result<void> check_mapped(std::span<const std::byte> memory);

}  // namespace railyard::memory
