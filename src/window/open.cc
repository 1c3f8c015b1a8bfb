/// World::open, apart from what it opens: it brings every way that ranks have to meet, PMIx too.
#include "bootstrap/open.hpp"

#include <memory>
#include <utility>

#include "base/log.hpp"
#include "window/assemble.hpp"
#include "window/world_state.hpp"

namespace railyard {

Result<World> World::open(const WorldOptions& options) {
  Result<Settings> settings =
      options.settings != nullptr ? Result<Settings>(*options.settings) : Settings::from_environment();
  if (!settings) return std::move(settings.error());
  apply_log_settings(*settings);
  if (options.bootstrap != nullptr) return open_world(*settings, *options.bootstrap);

  auto bootstrap = open_bootstrap(*settings);
  if (!bootstrap) return std::move(bootstrap.error());
  auto world = open_world(*settings, **bootstrap);
  if (world) world->state_->owned_bootstrap = std::move(*bootstrap);
  return world;
}

}  // namespace railyard
