#include "topology/locality.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace railyard::topology {

std::vector<std::vector<Nic>> group_by_locality(std::vector<Nic> nics) {
  std::vector<std::vector<Nic>> groups;
  const auto nowhere =
      std::stable_partition(nics.begin(), nics.end(), [](const Nic& nic) { return !nic.place.root.empty(); });
  for (auto nic = nics.begin(); nic != nowhere; ++nic) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const std::vector<Nic>& group) {
      return group.front().place.root == nic->place.root;
    });
    if (same == groups.end())
      groups.push_back({std::move(*nic)});
    else
      same->push_back(std::move(*nic));
  }
  if (nowhere != nics.end()) groups.emplace_back(std::make_move_iterator(nowhere), std::make_move_iterator(nics.end()));
  return groups;
}

}  // namespace railyard::topology
