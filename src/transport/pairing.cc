#include "transport/pairing.hpp"

#include <algorithm>
#include <set>

namespace railyard::transport {
namespace {

std::vector<std::uint16_t> rails_of(std::span<const std::string> rails, const std::string* fabric) {
  std::vector<std::uint16_t> found;
  for (std::size_t i = 0; i < rails.size(); ++i) {
    if (fabric == nullptr || rails[i] == *fabric) found.push_back(static_cast<std::uint16_t>(i));
  }
  return found;
}

void pair(const std::vector<std::uint16_t>& local, const std::vector<std::uint16_t>& remote,
          std::vector<std::pair<std::uint16_t, std::uint16_t>>& pairs) {
  if (local.empty() || remote.empty()) return;
  for (std::size_t i = 0; i < std::max(local.size(), remote.size()); ++i) {
    pairs.emplace_back(local[i % local.size()], remote[i % remote.size()]);
  }
}

}  // namespace

std::vector<std::pair<std::uint16_t, std::uint16_t>> pair_rails(std::span<const std::string> local,
                                                                std::span<const std::string> remote) {
  std::vector<std::pair<std::uint16_t, std::uint16_t>> pairs;
  for (const std::string& fabric : std::set<std::string>(local.begin(), local.end())) {
    pair(rails_of(local, &fabric), rails_of(remote, &fabric), pairs);
  }
  if (pairs.empty()) pair(rails_of(local, nullptr), rails_of(remote, nullptr), pairs);
  return pairs;
}

}  // namespace railyard::transport
