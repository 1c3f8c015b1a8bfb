#include "topology/locality.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "fabric/rail.hpp"

namespace railyard::topology {

std::vector<Nic> nics_of(std::span<const fabric::RailOffer> offers) {
  std::vector<Nic> nics;
  for (const fabric::RailOffer& offer : offers)
    nics.push_back(
        {offer.domain, offer.provider, offer.line_rate, find_pci_location(offer.domain), offer.device_memory});
  return nics;
}

bool comes_before(const Nic& a, const Nic& b) {
  const auto key = [](const Nic& nic) {
    const auto address = parse_pci_address(nic.location.function());
    // Of names that begin alike the shorter has the smaller number.
    return std::tuple(!address, address.value_or(PciAddress()), nic.name.size(), std::string_view(nic.name));
  };
  return key(a) < key(b);
}

std::vector<std::vector<Nic>> group_by_locality(std::vector<Nic> nics) {
  std::vector<std::vector<Nic>> groups;
  const auto nowhere =
      std::stable_partition(nics.begin(), nics.end(), [](const Nic& nic) { return !nic.location.root.empty(); });
  for (auto nic = nics.begin(); nic != nowhere; ++nic) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const std::vector<Nic>& group) {
      return group.front().location.root == nic->location.root;
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
