/// The drivers, and how the rails of a process are chosen among their offers.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/log.hpp"
#include "fabric/interface_filter.hpp"
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

/// This machine's memory as the only way: ranks on other hosts are not to be reached.
Result<std::vector<RailOffer>> discover_shm(const Settings& settings) {
  if (settings.shared_memory == "off" || !InterfaceFilter(settings.interfaces).takes("memory"))
    return Error(Status::not_found, "shared memory alone: RAILYARD_SHARED_MEMORY or RAILYARD_INTERFACES forbids it");
  RailOffer offer;
  offer.driver = offer.provider = "shm";
  offer.domain = "memory";
  offer.fabric = kSharedMemoryFabric;
  offer.loopback = true;
  return std::vector<RailOffer>{std::move(offer)};
}

Result<std::unique_ptr<Rail>> open_shm(const RailOffer& /*offer*/, const Settings& settings) {
  shm::ShmRail::Options options;
  options.directory = settings.shared_memory_directory;
  auto rail = shm::ShmRail::open(options);
  if (!rail) return std::move(rail.error());
  return std::unique_ptr<Rail>(std::move(*rail));
}

/// A new driver is one line here. (`sim` is not: its rails live in one process and are made by its own worlds. The one
/// rail of `shm` comes beside those of every other driver, too.)
constexpr std::array kDrivers = {
    Driver{"tcp", &discover_tcp, &open_tcp},
    Driver{"verbs", &discover_verbs, &open_verbs},
    Driver{"ofi", &discover_ofi, &open_ofi},
    Driver{"shm", &discover_shm, &open_shm},
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
  auto offers = (*driver)->discover(settings);
  // Where there is no network and none was asked for, ranks of this host can do with its memory.
  if (!offers && automatic && settings.provider.empty())
    if (auto memory = discover_shm(settings)) {
      log_warn("only ranks on this host can be reached: {}", offers.error().text());
      return memory;
    }
  return offers;
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

namespace {

void log_opened(const Rail& rail, const std::string& device) {
  if (!log_enabled(LogLevel::debug)) return;
  const std::string address = rail.describe_address(rail.address());
  log_debug(rail.in_log(), "opened: driver {}, device {}, address {}, fabric {}", rail.capabilities().driver, device,
            address.empty() ? "of the driver's own kind" : address, rail.fabric());
}

}  // namespace

Result<std::vector<std::unique_ptr<Rail>>> open_rails(const Settings& settings) {
  auto offers = chosen_offers(settings);
  if (!offers) return std::move(offers.error());
  auto driver = find_driver(offers->front().driver);
  if (!driver) return std::move(driver.error());
  std::vector<std::unique_ptr<Rail>> rails;
  const bool memory_alone = (*driver)->open == &open_shm;
  const std::size_t count = settings.rails == 0 || memory_alone ? offers->size() : settings.rails;
  for (std::size_t i = 0; i < count; ++i) {
    RailOffer offer = (*offers)[i % offers->size()];
    offer.number = static_cast<int>(i);
    // Several rails on one NIC have names that differ.
    const std::size_t turn = i / offers->size();
    if (turn != 0 || i + offers->size() < count) offer.twin = static_cast<int>(turn);
    auto rail = (*driver)->open(offer, settings);
    if (!rail) return std::move(rail.error());
    (*rail)->set_number(offer.number);
    log_opened(**rail, offer.domain);
    rails.push_back(std::move(*rail));
  }
  if (settings.shared_memory == "off" || memory_alone) return rails;
  auto shared = open_shm({}, settings);
  if (shared) {
    (*shared)->set_number(static_cast<int>(rails.size()));
    log_opened(**shared, "memory of this host");
    rails.push_back(std::move(*shared));
  } else {
    log_warn("ranks on this host reach each other through the network: {} (RAILYARD_SHARED_MEMORY=off is silent)",
             shared.error().text());
  }
  return rails;
}

}  // namespace railyard::fabric
