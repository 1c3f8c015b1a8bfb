/// Whose memory an address is.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "accelerator/accelerator.hpp"
#include "railyard/result.hpp"

namespace railyard::memory {

/// The allocation of a GPU that the bytes lie in; nothing for host memory.
std::optional<accelerator::Allocation> find_device(const void* address);
/// "host memory" or "GPU 3", for messages. `device`: -1 for the host.
std::string location_name(int device);
/// `check_mapped` for host memory; for device memory that all bytes lie in one allocation. The GPU's number, or -1.
Result<int> check_usable(std::span<const std::byte> memory);

}  // namespace railyard::memory
