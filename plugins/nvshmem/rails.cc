#include "rails.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "fabric/rail.hpp"
#include "topology/gpu_rails.hpp"

namespace railyard::nvshmem {

Settings near_gpu(Settings settings, const std::optional<std::string>& gpu) {
  if (!gpu || !settings.interfaces.empty()) return settings;
  const auto offers = fabric::chosen_offers(settings);
  if (!offers || offers->empty()) return settings;  // said when the rails are opened
  const std::string& driver = offers->front().driver;
  if (driver == "tcp" || driver == "shm") return settings;
  const auto table = topology::find_gpu_table(settings);
  const auto interfaces = table ? table->interfaces_of(*gpu) : Result<std::string>(table.error().copy());
  if (!interfaces || interfaces->empty()) {
    log_info("GPU {}: all NICs, as none is known to be near ({})", *gpu,
             interfaces ? "the topology assigns none" : interfaces.error().message());
    return settings;
  }
  log_info("GPU {} uses {}", *gpu, *interfaces);
  settings.interfaces = *interfaces;
  return settings;
}

Result<Settings> with_most_rails(Settings settings, std::size_t most) {
  const auto offers = fabric::chosen_offers(settings);
  if (!offers) return offers.error().copy();
  const std::size_t room = settings.shared_memory == "off" ? most : most - 1;
  const std::size_t wanted = settings.rails == 0 ? offers->size() : settings.rails;
  if (wanted > room) {
    log_info("{} rails of {}: a memory handle holds the keys of no more", room, wanted);
    settings.rails = static_cast<std::uint32_t>(room);
  }
  return settings;
}

}  // namespace railyard::nvshmem
