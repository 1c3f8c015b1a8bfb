#include "transport/pairing.hpp"

#include <algorithm>
#include <set>

#include "fabric/rail.hpp"

namespace railyard::transport {
namespace {

using Pairs = std::vector<std::pair<std::uint16_t, std::uint16_t>>;

bool in_memory(const std::string& fabric) { return fabric.starts_with(fabric::kSharedMemoryFabric); }

/// The rails of that fabric; of any network where there is no name.
std::vector<std::uint16_t> rails_of(std::span<const std::string> rails, const std::string* fabric) {
  std::vector<std::uint16_t> found;
  for (std::size_t i = 0; i < rails.size(); ++i) {
    if (fabric == nullptr ? !in_memory(rails[i]) : rails[i] == *fabric) found.push_back(static_cast<std::uint16_t>(i));
  }
  return found;
}

void pair(const std::vector<std::uint16_t>& local, const std::vector<std::uint16_t>& remote, Pairs& pairs) {
  if (local.empty() || remote.empty()) return;
  for (std::size_t i = 0; i < std::max(local.size(), remote.size()); ++i) {
    pairs.emplace_back(local[i % local.size()], remote[i % remote.size()]);
  }
}

}  // namespace

Pairs pair_rails(std::span<const std::string> local, std::span<const std::string> remote, bool network_only) {
  const std::set<std::string> fabrics(local.begin(), local.end());
  Pairs pairs;
  for (const bool memory : {true, false}) {
    if (memory && network_only) continue;
    for (const std::string& fabric : fabrics) {
      if (in_memory(fabric) == memory) pair(rails_of(local, &fabric), rails_of(remote, &fabric), pairs);
    }
    if (!pairs.empty()) return pairs;
  }
  pair(rails_of(local, nullptr), rails_of(remote, nullptr), pairs);
  return pairs;
}

}  // namespace railyard::transport
