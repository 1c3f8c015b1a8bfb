/// Which rails a PE uses: those of its GPU, as the topology has it, and no more than handles have room for.
#pragma once

#include <optional>
#include <string>

#include "handle.hpp"
#include "railyard/settings.hpp"

namespace railyard::nvshmem {

/// Of kMostRails, what the host's own lane may have; its proxy's has the rest. One of each is for shared memory.
inline constexpr std::size_t kHostRails = 8;
inline constexpr std::size_t kProxyRails = kMostRails - kHostRails;

/// The settings with the NICs that serve `gpu` ("0000:17:00.0") as interfaces, unless the user has named some. Where
/// the topology is not known, or for kernel sockets, which gain nothing by it, all NICs stay.
Settings near_gpu(Settings settings, const std::optional<std::string>& gpu);
/// The settings with at most so many rails, the one through shared memory counted.
Result<Settings> with_most_rails(Settings settings, std::size_t most);

}  // namespace railyard::nvshmem
