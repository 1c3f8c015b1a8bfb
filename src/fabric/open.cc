/// The drivers, and how the rails of a process are chosen among their offers.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/log.hpp"
#include "fabric/ofi/driver.hpp"
#include "fabric/rail.hpp"
#include "fabric/shm/rail.hpp"
#include "fabric/tcp/driver.hpp"
#include "fabric/verbs/driver.hpp"

namespace railyard::fabric {

namespace {

struct Driver {
  std::string_view name;
  Result<std::vector<RailOffer>> (*discover)(const Settings& settings);
  Result<std::unique_ptr<Rail>> (*open)(const RailOffer& offer, const Settings& settings);
};

/// A new driver is one line here. (`sim` is not: its rails live in one process and are made by its own worlds. Nor is
/// `shm`: its one rail comes beside those of every other driver.)
constexpr std::array kDrivers = {
    Driver{"tcp", &discover_tcp, &open_tcp},
    Driver{"verbs", &discover_verbs, &open_verbs},
    Driver{"ofi", &discover_ofi, &open_ofi},
};

Result<const Driver*> find_driver(std::string_view name) {
  for (const Driver& driver : kDrivers)
    if (driver.name == name) return &driver;
  std::string known = "auto";
  for (const Driver& driver : kDrivers) known += fmt::format(", {}", driver.name);
  const char* const hint = name == "sim" ? " The simulated rail has worlds of its own: see `railyard sim`." : "";
  return Error(Status::not_found, fmt::format("no driver '{}': RAILYARD_DRIVER is one of {}.{}", name, known, hint));
}

}  // namespace

Result<std::vector<RailOffer>> discover(const Settings& settings) {
  const bool automatic = settings.driver == "auto";
  // Verbs where a port of it can be used, else the kernel's sockets; libfabric where one of its providers is asked for.
  const bool sockets = settings.provider.empty();
  if (automatic && sockets) {
    auto offers = discover_verbs(settings);
    if (offers && std::ranges::any_of(*offers, [](const RailOffer& offer) { return !offer.loopback; })) return offers;
  }
  auto driver = find_driver(!automatic ? settings.driver : sockets ? "tcp" : "ofi");
  if (!driver) return std::move(driver.error());
  return (*driver)->discover(settings);
}

Result<std::vector<RailOffer>> chosen_offers(const Settings& settings) {
  auto offers = discover(settings);
  if (!offers) return offers;
  // Loopback reaches this machine only: it is used where there is nothing else, or where it is asked for by name.
  const bool chosen = !settings.interfaces.empty() && !settings.interfaces.starts_with('^');
  const bool others = std::any_of(offers->begin(), offers->end(), [](const RailOffer& o) { return !o.loopback; });
  if (!chosen && others) std::erase_if(*offers, [](const RailOffer& offer) { return offer.loopback; });
  return offers;
}

Result<std::vector<std::unique_ptr<Rail>>> open_rails(const Settings& settings) {
  auto offers = chosen_offers(settings);
  if (!offers) return std::move(offers.error());
  auto driver = find_driver(offers->front().driver);
  if (!driver) return std::move(driver.error());
  std::vector<std::unique_ptr<Rail>> rails;
  const std::size_t count = settings.rails == 0 ? offers->size() : settings.rails;
  for (std::size_t i = 0; i < count; ++i) {
    auto rail = (*driver)->open((*offers)[i % offers->size()], settings);
    if (!rail) return std::move(rail.error());
    rails.push_back(std::move(*rail));
  }
  if (settings.shared_memory == "off") return rails;
  auto shared = shm::ShmRail::open({});
  if (shared) {
    rails.push_back(std::move(*shared));
  } else {
    log_warn("ranks on this host reach each other through the network: {} (RAILYARD_SHARED_MEMORY=off is silent)",
             shared.error().text());
  }
  return rails;
}

}  // namespace railyard::fabric
