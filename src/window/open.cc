/// World::open, apart from what it opens: it brings every way that ranks have to meet, PMIx too. What has a bootstrap
/// of its own (plugins/nvshmem, plugins/nccl) calls open_world and links none of them.
#include "bootstrap/open.hpp"

#include <memory>
#include <utility>

#include "base/log.hpp"
#include "railyard/context.hpp"
#include "window/assemble.hpp"
#include "window/world_state.hpp"

namespace railyard {

Result<World> World::open(const WorldOptions& options) {
  if (options.context != nullptr && options.settings != nullptr) {
    return Error(Status::invalid, "World::open: a world on a context has the context's settings: give one of the two",
                 {.operation = "open"});
  }
  Result<Settings> settings = options.context != nullptr    ? Result<Settings>(options.context->settings())
                              : options.settings != nullptr ? Result<Settings>(*options.settings)
                                                            : Settings::from_environment();
  if (!settings) return std::move(settings.error());
  const auto open = [&](Bootstrap& bootstrap) {
    return options.context != nullptr ? open_world(*options.context, bootstrap) : open_world(*settings, bootstrap);
  };
  if (options.bootstrap != nullptr) return open(*options.bootstrap);

  apply_log_settings(*settings);
  auto bootstrap = open_bootstrap(*settings);
  if (!bootstrap) return std::move(bootstrap.error());
  auto world = open(**bootstrap);
  if (world) world->state_->owned_bootstrap = std::move(*bootstrap);
  return world;
}

}  // namespace railyard
