/// Where bare libfabric has to run to be compared: the interfaces that the world's rails use, paired as they are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/raw_libfabric.hpp"
#include "railyard/settings.hpp"
#include "railyard/world.hpp"

namespace railyard::tool {

/// The interface of each rail of the world, in order.
Result<std::vector<bench::RawDomain>> domains_of_rails(const World& world, const Settings& settings);

/// One endpoint of the other rank.
struct PeerDomain {
  std::string fabric;
  std::vector<std::byte> contribution;
};

/// Connects each rail with one of the other rank on the same fabric, each used once. Rank 0 chooses in its order;
/// rank 1 comes to the same pairs by itself and reorders its rails, so that equal indices are connected.
Result<void> pair_rails(std::vector<std::unique_ptr<bench::RawRail>>& mine, const std::vector<PeerDomain>& theirs,
                        int rank);

}  // namespace railyard::tool
