/// Opening a world whose ranks have yet to find each other. Apart from the rest: what brings its own bootstrap
/// (plugins/nvshmem) links no launcher and no PMIx.
#include "bootstrap/open.hpp"

#include "base/log.hpp"
#include "window/world_state.hpp"

namespace railyard {

Result<World> World::open(const WorldOptions& options) {
  Result<Settings> settings =
      options.settings != nullptr ? Result<Settings>(*options.settings) : Settings::from_environment();
  if (!settings) return std::move(settings.error());
  if (options.bootstrap != nullptr) return open_world(*settings, *options.bootstrap);
  apply_log_settings(*settings);
  auto opened = open_bootstrap(*settings);
  if (!opened) return std::move(opened.error());
  auto world = open_world(*settings, **opened);
  if (world) world->state_->owned_bootstrap = std::move(*opened);
  return world;
}

}  // namespace railyard
