#include "bench_domains.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "fabric/rail.hpp"

namespace railyard::tool {

Result<std::vector<bench::RawDomain>> domains_of_rails(const World& world, const Settings& settings) {
  const WorldStatistics statistics = world.statistics();
  const bool verbs = !statistics.rails.empty() && statistics.rails.front().provider == "verbs";
  if (verbs) {
    return Error(Status::unsupported,
                 "--beside raw compares with bare libfabric, which these rails do without: RAILYARD_DRIVER=tcp or ofi "
                 "have a counterpart there");
  }
  // The bare contestant uses reliable datagrams, whatever our rails use: it is what a user of libfabric would take.
  Settings datagrams = settings;
  datagrams.driver = "ofi";
  if (datagrams.provider.empty() && settings.driver != "ofi") datagrams.provider = "tcp";
  datagrams.endpoints = "datagram";
  auto offers = fabric::discover(datagrams);
  if (!offers) return std::move(offers.error());
  std::vector<bench::RawDomain> domains;
  for (const RailStatistics& rail : statistics.rails) {
    // A rail is called "provider interface address", or "interface#1" in it for one of several on that interface; the
    // offer of that interface tells the rest.
    const auto offer = std::find_if(offers->begin(), offers->end(), [&](const fabric::RailOffer& candidate) {
      const std::string name = fmt::format(" {} ", rail.name);
      return name.find(fmt::format(" {} ", candidate.domain)) != std::string::npos ||
             name.find(fmt::format(" {}#", candidate.domain)) != std::string::npos;
    });
    if (offer == offers->end()) {
      return Error(Status::not_found, fmt::format("--beside raw: no libfabric interface for rail '{}'", rail.name));
    }
    // After an @ our driver adds which machine a loopback belongs to; libfabric does not know that part.
    domains.push_back({offer->provider, offer->domain, offer->fabric.substr(0, offer->fabric.rfind('@'))});
  }
  return domains;
}

Result<void> pair_rails(std::vector<std::unique_ptr<bench::RawRail>>& mine, const std::vector<PeerDomain>& theirs,
                        int rank) {
  std::vector<std::string> first;
  std::vector<std::string> second;
  for (const auto& rail : mine) (rank == 0 ? first : second).push_back(rail->where().fabric);
  for (const auto& peer : theirs) (rank == 0 ? second : first).push_back(peer.fabric);
  std::vector<bool> taken(second.size());
  std::vector<std::unique_ptr<bench::RawRail>> paired;
  for (std::size_t i = 0; i < first.size(); ++i) {
    std::size_t j = 0;
    while (j < second.size() && (taken[j] || second[j] != first[i])) ++j;
    if (j == second.size()) {
      return Error(Status::not_found, fmt::format("--beside raw: rank 1 has no rail left on fabric {}", first[i]));
    }
    taken[j] = true;
    auto& rail = mine[rank == 0 ? i : j];
    if (auto connected = rail->connect(theirs[rank == 0 ? j : i].contribution); !connected) return connected;
    paired.push_back(std::move(rail));
  }
  mine = std::move(paired);
  return {};
}

}  // namespace railyard::tool
