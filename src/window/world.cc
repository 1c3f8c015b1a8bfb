#include "railyard/world.hpp"

#include <fmt/format.h>

#include "base/entropy.hpp"
#include "base/log.hpp"
#include "context/context_state.hpp"
#include "window/assemble.hpp"
#include "window/world_state.hpp"

namespace railyard {

using window_detail::WorldAccess;

namespace {

World make_world(std::shared_ptr<Membership> membership, int rank, int size) {
  auto state = std::make_shared<WorldState>();
  state->first_flow = membership->ranks().first_flow;
  state->membership = std::move(membership);
  state->rank = rank;
  state->size = size;
  return WorldAccess::make(std::move(state));
}

}  // namespace

WorldState::~WorldState() {
  if (is_part()) owned_bootstrap.reset();  // has a window
}

World::World(std::shared_ptr<WorldState> state) : state_(std::move(state)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

// ---- Opening ----

WorldAssembly::WorldAssembly(std::unique_ptr<Membership> membership, int rank, int size, std::uint64_t instance)
    : membership_(std::move(membership)), rank_(rank), size_(size), instance_(instance) {}
WorldAssembly::WorldAssembly(WorldAssembly&&) noexcept = default;
WorldAssembly& WorldAssembly::operator=(WorldAssembly&&) noexcept = default;
WorldAssembly::~WorldAssembly() = default;

Result<WorldAssembly> WorldAssembly::begin(WorldParts parts) {
  transport::EngineParts engine_parts;
  engine_parts.settings = std::move(parts.settings);
  engine_parts.clock = parts.clock;
  engine_parts.rails = std::move(parts.rails);
  engine_parts.size = 0;
  engine_parts.most_flows = static_cast<std::size_t>(std::max(parts.size, 1)) * static_cast<std::size_t>(parts.worlds);
  engine_parts.identity = parts.identity;
  auto engine = transport::Engine::open(std::move(engine_parts));
  if (!engine) return std::move(engine.error());
  auto membership = Membership::open(std::make_shared<WorldEngine>(std::move(*engine)), parts.rank, parts.size);
  if (!membership) return std::move(membership.error());
  return WorldAssembly(std::move(*membership), parts.rank, parts.size, 0);
}

Result<WorldAssembly> WorldAssembly::begin_beside(World& world, std::uint64_t instance) {
  WorldEngine& home = window_detail::WorldAccess::state(world).home();
  auto membership = Membership::open(home.shared_from_this(), world.rank(), world.size());
  if (!membership) return std::move(membership.error());
  return WorldAssembly(std::move(*membership), world.rank(), world.size(), instance);
}

std::vector<std::byte> WorldAssembly::contribution() const { return membership_->contribution(instance_); }

Result<World> WorldAssembly::finish(std::span<const std::vector<std::byte>> all) {
  if (auto joined = membership_->join(all); !joined) return std::move(joined.error());
  return make_world(std::move(membership_), rank_, size_);
}

namespace {

/// A world on that engine, which may have others.
Result<World> open_on(const std::shared_ptr<WorldEngine>& home, Bootstrap& bootstrap) {
  const Settings& settings = home->engine().settings();
  const int rank = bootstrap.rank();
  const int size = bootstrap.size();
  auto membership = Membership::open(home, rank, size);
  if (!membership) return std::move(membership.error());
  std::uint64_t instance = 0;
  if (auto filled = fill_random(std::as_writable_bytes(std::span(&instance, 1))); !filled) {
    return std::move(filled.error());
  }
  const auto deadline = Deadline::in(std::chrono::milliseconds(settings.bootstrap_timeout_ms));
  const auto gather = [&] { return bootstrap.allgather((*membership)->contribution(instance), deadline); };
  // Worlds that are there already go on meanwhile.
  auto contributions = home->begun() ? home->with_progress(gather) : gather();
  if (!contributions) return std::move(contributions.error());
  if (auto joined = (*membership)->join(*contributions); !joined) return std::move(joined.error());
  World world = make_world(std::move(*membership), rank, size);
  WorldState& state = WorldAccess::state(world);
  state.bootstrap = &bootstrap;
  state.shares_memory = settings.shared_memory != "off";
  home->begin(rank, size);
  return world;
}

}  // namespace

Result<World> open_world(const Settings& settings, Bootstrap& bootstrap) {
  apply_log_settings(settings);
  set_log_rank(bootstrap.rank());
  log_changed_settings(settings);
  auto home = WorldEngine::open(settings, Identity::make());
  if (!home) return std::move(home.error());
  return open_on(*home, bootstrap);
}

Result<World> open_world(Context& context, Bootstrap& bootstrap) {
  auto home = WorldEngine::of(ContextState::of(context));
  if (!home) return std::move(home.error());
  if (!(*home)->begun()) set_log_rank(bootstrap.rank());
  return open_on(*home, bootstrap);
}

// ---- Use ----

int World::rank() const noexcept { return state_->rank; }
int World::size() const noexcept { return state_->size; }
std::size_t World::rail_count() const noexcept { return state_->engine().rails().size(); }
const Settings& World::settings() const noexcept { return state_->engine().settings(); }

void World::progress() { state_->home().progress(); }
Result<int> World::descriptor() { return state_->home().descriptor(); }
bool World::arm() { return state_->home().arm(); }

Result<void> World::remember(std::span<const std::byte> memory) {
  if (auto ready = state_->home().prepare_copies(memory); !ready) return ready;
  transport::Engine& engine = state_->engine();
  const transport::ProgressGuard hold(engine.progress_lock());
  return engine.cache().remember(memory);
}

void World::forget(std::span<const std::byte> memory) {
  transport::Engine& engine = state_->engine();
  const transport::ProgressGuard hold(engine.progress_lock());
  engine.cache().forget(memory);
  engine.revocation().revoke(memory);
}

Result<void> World::barrier(Deadline deadline) {
  if (state_->bootstrap == nullptr) return Error(Status::unsupported, "this world was assembled without a bootstrap");
  const auto nanoseconds = deadline.nanoseconds(std::int64_t{settings().timeout_ms} * 1'000'000);
  return state_->with_progress(
      [&] { return state_->bootstrap->barrier(Deadline::in(std::chrono::nanoseconds(nanoseconds))); });
}

WorldStatistics World::statistics() const { return state_->home().statistics(); }

}  // namespace railyard
