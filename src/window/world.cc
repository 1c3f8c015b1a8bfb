#include "railyard/world.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/store_barrier.hpp"
#include "memory/location.hpp"
#include "window/assemble.hpp"
#include "window/world_state.hpp"

namespace railyard {

WorldState::~WorldState() {
  if (opened) owned_bootstrap.reset();  // has a window
  progress_thread_.reset();
  if (engine != nullptr && !opened) {
    const transport::ProgressGuard hold(engine->progress_lock());
    engine->end_publishing();  // what it publishes last is of this object
  }
  engine.reset();  // before the clock and the directory it uses
}

void WorldState::begin_publishing(const Settings& settings) {
  auto store = telemetry::Store::of_process(settings);
  if (store == nullptr) return;
  store->set_rank(rank, size);
  const std::string name = fmt::format("world {}", store->next_context());
  const transport::ProgressGuard hold(engine->progress_lock());
  engine->begin_publishing({std::move(store), name, settings.summary == "1", [this](WorldStatistics& statistics) {
                              add_direct_use(statistics);
                              publish_windows();
                            }});
}

void WorldState::add_window(WindowUse& window) {
  const transport::ProgressGuard hold(engine->progress_lock());
  window.set_number(++windows_made_);
  windows_.push_back(&window);
}

void WorldState::remove_window(WindowUse& window) {
  if (std::erase(windows_, &window) == 0) return;
  window.add_direct(closed_windows_);
  engine->forget(window.submitter());
  window.end_publishing();
}

void WorldState::add_direct_use(WorldStatistics& statistics) const {
  statistics.direct_puts += closed_windows_.direct_puts;
  statistics.direct_gets += closed_windows_.direct_gets;
  statistics.direct_atomics += closed_windows_.direct_atomics;
  statistics.direct_bytes_put += closed_windows_.direct_bytes_put;
  statistics.direct_bytes_got += closed_windows_.direct_bytes_got;
  for (const WindowUse* window : windows_) window->add_direct(statistics);
}

void WorldState::publish_windows() {
  transport::EngineTelemetry* const telemetry = engine->telemetry();
  if (telemetry == nullptr) return;  // the first publish, before there are any
  for (WindowUse* window : windows_) window->publish(telemetry->store(), telemetry->name());
}

void WorldState::begin_tracing(const Settings& settings) {
  auto trace = telemetry::Trace::of_process(settings);
  if (trace == nullptr) return;
  trace->set_rank(rank, size);
  const transport::ProgressGuard hold(engine->progress_lock());
  engine->begin_tracing(std::move(trace), fmt::format("rank {}", rank));
}

void WorldState::start_progress_thread() {
  const Settings& settings = engine->settings();
  // Also where NICs move the bytes by themselves: peers want their acknowledgements and the answers to their questions.
  const bool by_itself = settings.progress == "auto" && settings.threads != "single";
  if (settings.progress != "thread" && !by_itself) {
    log_debug("progress: no thread, callers make it; waits: {}", settings.wait);
    return;
  }
  progress_thread_ = std::make_unique<transport::ProgressThread>(*engine, transport::plain_pass(*engine),
                                                                 transport::ProgressThread::Options{});
  log_debug("progress: a thread makes it; waits: {}", settings.wait);
}

// ---- Event loops ----

Result<int> WorldState::descriptor() {
  if (readable_) return readable_.get();
  const auto system_error = [](const char* call) {
    return Error(Status::io, fmt::format("{}: {}", call, std::strerror(errno)), {.operation = "descriptor"});
  };
  Fd set(::epoll_create1(EPOLL_CLOEXEC));
  if (!set) return system_error("epoll_create1");
  Fd alarm(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!alarm) return system_error("timerfd_create");
  auto watched = engine->waiting().watch_descriptors();
  if (!watched) return std::move(watched.error());
  watched->push_back(alarm.get());
  for (const int each : *watched) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = each;
    if (::epoll_ctl(set.get(), EPOLL_CTL_ADD, each, &event) != 0) return system_error("epoll_ctl");
  }
  alarm_ = std::move(alarm);
  readable_ = std::move(set);
  return readable_.get();
}

bool WorldState::arm() {
  const transport::ProgressGuard hold(engine->progress_lock());
  if (!readable_) return false;
  disarm();
  std::int64_t nanoseconds = INT64_MAX;
  armed_ = engine->waiting().begin_sleep(refused_, nanoseconds, readable_.get()) == transport::Waiting::Slept::yes;
  refused_ = !armed_;
  if (!armed_) return false;
  for (transport::Sleepers* each : sleepers_) each->enter();
  itimerspec due{};
  due.it_value.tv_sec = nanoseconds / 1'000'000'000;
  due.it_value.tv_nsec = std::max<long>(1, nanoseconds % 1'000'000'000);
  ::timerfd_settime(alarm_.get(), 0, &due, nullptr);
  return true;
}

void WorldState::disarm() {
  if (!std::exchange(armed_, false)) return;
  engine->waiting().end_sleep();
  for (transport::Sleepers* each : sleepers_) each->leave();
}

void WorldState::add_sleepers(transport::Sleepers* of_window) {
  sleepers_.push_back(of_window);
  if (armed_) of_window->enter();
}

void WorldState::remove_sleepers(transport::Sleepers* of_window) {
  if (std::erase(sleepers_, of_window) > 0 && armed_) of_window->leave();
}

void WorldState::progress() {
  if (!engine->progress_lock().try_take()) return;  // whoever has it is making progress
  if (armed_) {
    disarm();
    const itimerspec never{};
    ::timerfd_settime(alarm_.get(), 0, &never, nullptr);
  }
  engine->progress();
  engine->progress_lock().give();
}

World::World(std::shared_ptr<WorldState> state) : state_(std::move(state)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

Result<void> WorldState::prepare_copies(std::span<const std::byte> memory) {
  const auto device = memory::find_device(memory.data());
  if (!device) return {};
  const std::lock_guard lock(copies_mutex);
  return copies.prepare(device->device);
}

Result<WorldAssembly> WorldAssembly::begin(WorldParts parts) {
  if (parts.rank < 0 || parts.rank >= parts.size) {
    return Error(Status::out_of_range, fmt::format("rank {} of {}", parts.rank, parts.size));
  }
  return WorldAssembly(std::move(parts));
}

std::vector<std::byte> WorldAssembly::contribution() const {
  return Directory::contribution(parts_.identity, parts_.rails);
}

Result<World> WorldAssembly::finish(std::span<const std::vector<std::byte>> all) {
  if (all.size() != static_cast<std::size_t>(parts_.size)) {
    return Error(Status::invalid, fmt::format("{} contributions for {} ranks", all.size(), parts_.size));
  }
  auto state = std::make_shared<WorldState>();
  auto directory = Directory::open(all);
  if (!directory) return std::move(directory.error());
  state->directory = std::move(*directory);
  state->rank = parts_.rank;
  state->size = parts_.size;
  transport::EngineParts engine_parts;
  engine_parts.settings = std::move(parts_.settings);
  engine_parts.clock = parts_.clock;
  engine_parts.rails = std::move(parts_.rails);
  engine_parts.rank = parts_.rank;
  engine_parts.size = parts_.size;
  engine_parts.identity = parts_.identity;
  engine_parts.find_peer = [directory = &state->directory](int rank) { return directory->find(rank); };
  auto engine = transport::Engine::open(std::move(engine_parts));
  if (!engine) return std::move(engine.error());
  state->engine = std::move(*engine);
  return window_detail::WorldAccess::make(std::move(state));
}

Result<World> open_world(const Settings& settings, Bootstrap& bootstrap) {
  apply_log_settings(settings);
  set_log_rank(bootstrap.rank());
  log_changed_settings(settings);

  allow_waiting_for_stores();
  auto rails = fabric::open_rails(settings);
  if (!rails) return std::move(rails.error());
  auto clock = std::make_unique<SteadyClock>();
  WorldParts parts;
  parts.settings = settings;
  parts.clock = clock.get();
  parts.rails = std::move(*rails);
  parts.rank = bootstrap.rank();
  parts.size = bootstrap.size();
  parts.identity = Identity::make();
  auto assembly = WorldAssembly::begin(std::move(parts));
  if (!assembly) return std::move(assembly.error());
  const auto deadline = Deadline::in(std::chrono::milliseconds(settings.bootstrap_timeout_ms));
  auto contributions = bootstrap.allgather(assembly->contribution(), deadline);
  if (!contributions) return std::move(contributions.error());
  auto world = assembly->finish(*contributions);
  if (!world) return std::move(world.error());
  WorldState& state = window_detail::WorldAccess::state(*world);
  state.bootstrap = &bootstrap;
  state.owned_clock = std::move(clock);
  state.shares_memory = settings.shared_memory != "off";
  for (const fabric::Rail* rail : state.engine->rails()) {
    log_info(rail->in_log(), "{} on {}", rail->capabilities().provider, rail->fabric());
  }
  state.begin_publishing(settings);
  state.begin_tracing(settings);
  state.start_progress_thread();
  return world;
}

int World::rank() const noexcept { return state_->rank; }
int World::size() const noexcept { return state_->size; }
std::size_t World::rail_count() const noexcept { return state_->engine->rails().size(); }
const Settings& World::settings() const noexcept { return state_->engine->settings(); }

void World::progress() { state_->base().progress(); }
Result<int> World::descriptor() { return state_->base().descriptor(); }
bool World::arm() { return state_->base().arm(); }

Result<void> World::remember(std::span<const std::byte> memory) {
  if (auto ready = state_->base().prepare_copies(memory); !ready) return ready;
  const transport::ProgressGuard hold(state_->engine->progress_lock());
  return state_->engine->cache().remember(memory);
}

void World::forget(std::span<const std::byte> memory) {
  const transport::ProgressGuard hold(state_->engine->progress_lock());
  state_->engine->cache().forget(memory);
  state_->engine->revoke(memory);
}

Result<void> World::barrier(Deadline deadline) {
  if (state_->bootstrap == nullptr) return Error(Status::unsupported, "this world was assembled without a bootstrap");
  const Settings& settings = state_->engine->settings();
  const auto nanoseconds = deadline.nanoseconds(std::int64_t{settings.timeout_ms} * 1'000'000);
  return state_->with_progress(
      [&] { return state_->bootstrap->barrier(Deadline::in(std::chrono::nanoseconds(nanoseconds))); });
}

WorldStatistics World::statistics() const {
  const transport::ProgressGuard hold(state_->engine->progress_lock());
  WorldStatistics statistics = state_->engine->statistics();
  state_->base().add_direct_use(statistics);
  return statistics;
}

}  // namespace railyard
