#include "window/world_engine.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/store_barrier.hpp"
#include "context/context_state.hpp"
#include "memory/location.hpp"

namespace railyard {

Result<std::shared_ptr<WorldEngine>> WorldEngine::open(const Settings& settings, const Identity& identity) {
  allow_waiting_for_stores();
  auto rails = fabric::open_rails(settings);
  if (!rails) return std::move(rails.error());
  auto clock = std::make_unique<SteadyClock>();
  transport::EngineParts parts;
  parts.settings = settings;
  parts.clock = clock.get();
  parts.rails = std::move(*rails);
  parts.size = 0;  // worlds join one by one
  parts.most_flows = UINT16_MAX;
  parts.identity = identity;
  auto engine = transport::Engine::open(std::move(parts));
  if (!engine) return std::move(engine.error());
  auto home = std::make_shared<WorldEngine>(std::move(*engine));
  home->clock_ = std::move(clock);
  for (const fabric::Rail* rail : home->engine_->rails()) {
    log_info(rail->in_log(), "{} on {}", rail->capabilities().provider, rail->fabric());
  }
  return home;
}

Result<std::shared_ptr<WorldEngine>> WorldEngine::of(ContextState& context) {
  return context.part(
      &ContextState::worlds, [&context] { return open(context.settings, context.identity); },
      [](WorldEngine& worlds, ContextStatistics& statistics) { statistics.engines.push_back(worlds.statistics()); });
}

WorldEngine::WorldEngine(std::unique_ptr<transport::Engine> engine) : engine_(std::move(engine)) {}

WorldEngine::~WorldEngine() {
  progress_thread_.reset();
  {
    const transport::ProgressGuard hold(engine_->progress_lock());
    engine_->end_publishing();  // what it publishes last is of this object
  }
  engine_.reset();  // before the clock it uses
}

// ---- What the settings ask for ----

bool WorldEngine::begun() {
  const std::lock_guard lock(beginning_);
  return begun_;
}

void WorldEngine::begin(int rank, int size) {
  const std::lock_guard lock(beginning_);
  if (std::exchange(begun_, true)) return;
  begin_publishing(rank, size);
  begin_tracing(rank, size);
  start_progress_thread();
}

void WorldEngine::begin_publishing(int rank, int size) {
  const Settings& settings = engine_->settings();
  auto store = telemetry::Store::of_process(settings);
  if (store == nullptr) return;
  store->set_rank(rank, size);
  const std::string name = fmt::format("world {}", store->next_context());
  const transport::ProgressGuard hold(engine_->progress_lock());
  engine_->begin_publishing({std::move(store), name, settings.summary == "1", [this](WorldStatistics& statistics) {
                               add_direct_use(statistics);
                               publish_windows();
                             }});
}

void WorldEngine::begin_tracing(int rank, int size) {
  auto trace = telemetry::Trace::of_process(engine_->settings());
  if (trace == nullptr) return;
  trace->set_rank(rank, size);
  const transport::ProgressGuard hold(engine_->progress_lock());
  engine_->begin_tracing(std::move(trace), fmt::format("rank {}", rank));
}

void WorldEngine::start_progress_thread() {
  const Settings& settings = engine_->settings();
  // Also where NICs move the bytes by themselves: peers want their acknowledgements and the answers to their questions.
  const bool by_itself = settings.progress == "auto" && settings.threads != "single";
  if (settings.progress != "thread" && !by_itself) {
    log_debug("progress: no thread, callers make it; waits: {}", settings.wait);
    return;
  }
  progress_thread_ = std::make_unique<transport::ProgressThread>(*engine_, transport::plain_pass(*engine_),
                                                                 transport::ProgressThread::Options{});
  log_debug("progress: a thread makes it; waits: {}", settings.wait);
}

// ---- What windows did ----

void WorldEngine::add_window(WindowUse& window) {
  const transport::ProgressGuard hold(engine_->progress_lock());
  window.set_number(++windows_made_);
  windows_.push_back(&window);
}

void WorldEngine::remove_window(WindowUse& window) {
  if (std::erase(windows_, &window) == 0) return;
  window.add_direct(closed_windows_);
  engine_->completions().forget(window.submitter());
  window.end_publishing();
}

void WorldEngine::add_direct_use(WorldStatistics& statistics) const {
  statistics.direct_puts += closed_windows_.direct_puts;
  statistics.direct_gets += closed_windows_.direct_gets;
  statistics.direct_atomics += closed_windows_.direct_atomics;
  statistics.direct_bytes_put += closed_windows_.direct_bytes_put;
  statistics.direct_bytes_got += closed_windows_.direct_bytes_got;
  for (const WindowUse* window : windows_) window->add_direct(statistics);
}

void WorldEngine::publish_windows() {
  transport::EngineTelemetry* const telemetry = engine_->telemetry();
  if (telemetry == nullptr) return;  // the first publish, before there are any
  for (WindowUse* window : windows_) window->publish(telemetry->store(), telemetry->name());
}

WorldStatistics WorldEngine::statistics() {
  const transport::ProgressGuard hold(engine_->progress_lock());
  WorldStatistics statistics = engine_->statistics();
  add_direct_use(statistics);
  return statistics;
}

// ---- Event loops ----

Result<int> WorldEngine::descriptor() {
  if (readable_) return readable_.get();
  const auto system_error = [](const char* call) {
    return Error(Status::io, fmt::format("{}: {}", call, std::strerror(errno)), {.operation = "descriptor"});
  };
  Fd set(::epoll_create1(EPOLL_CLOEXEC));
  if (!set) return system_error("epoll_create1");
  Fd alarm(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!alarm) return system_error("timerfd_create");
  auto watched = engine_->waiting().watch_descriptors();
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

bool WorldEngine::arm() {
  const transport::ProgressGuard hold(engine_->progress_lock());
  if (!readable_) return false;
  disarm();
  std::int64_t nanoseconds = INT64_MAX;
  armed_ = engine_->waiting().begin_sleep(refused_, nanoseconds, readable_.get()) == transport::Waiting::Slept::yes;
  refused_ = !armed_;
  if (!armed_) return false;
  for (transport::Sleepers* each : sleepers_) each->enter();
  itimerspec due{};
  due.it_value.tv_sec = nanoseconds / 1'000'000'000;
  due.it_value.tv_nsec = std::max<long>(1, nanoseconds % 1'000'000'000);
  ::timerfd_settime(alarm_.get(), 0, &due, nullptr);
  return true;
}

void WorldEngine::disarm() {
  if (!std::exchange(armed_, false)) return;
  engine_->waiting().end_sleep();
  for (transport::Sleepers* each : sleepers_) each->leave();
}

void WorldEngine::add_sleepers(transport::Sleepers* of_window) {
  sleepers_.push_back(of_window);
  if (armed_) of_window->enter();
}

void WorldEngine::remove_sleepers(transport::Sleepers* of_window) {
  if (std::erase(sleepers_, of_window) > 0 && armed_) of_window->leave();
}

void WorldEngine::progress() {
  if (!engine_->progress_lock().try_take()) return;  // whoever has it is making progress
  if (armed_) {
    disarm();
    const itimerspec never{};
    ::timerfd_settime(alarm_.get(), 0, &never, nullptr);
  }
  engine_->progress();
  engine_->progress_lock().give();
}

Result<void> WorldEngine::prepare_copies(std::span<const std::byte> memory) {
  const auto device = memory::find_device(memory.data());
  if (!device) return {};
  const std::lock_guard lock(copies_mutex);
  return copies.prepare(device->device);
}

// ---- A world's place ----

Result<std::unique_ptr<Membership>> Membership::open(const std::shared_ptr<WorldEngine>& home, int rank, int size) {
  if (rank < 0 || rank >= size) return Error(Status::out_of_range, fmt::format("rank {} of {}", rank, size));
  if (size > UINT16_MAX) {
    return Error(Status::out_of_range, fmt::format("{} ranks: a world holds at most {}", size, UINT16_MAX));
  }
  const transport::ProgressGuard hold(home->engine().progress_lock());
  auto first = home->engine().peers().flows().reserve(static_cast<std::size_t>(size));
  if (!first) return std::move(first.error());
  return std::unique_ptr<Membership>(new Membership(home, rank, size, *first));
}

Membership::~Membership() {
  transport::Engine& engine = home_->engine();
  const transport::ProgressGuard hold(engine.progress_lock());
  if (ranks_ != nullptr) {
    engine.leave(*ranks_);
    home_->worlds_.fetch_sub(1, std::memory_order_relaxed);
  } else {
    engine.peers().flows().release(first_flow_, static_cast<std::size_t>(size_));
  }
}

Identity Membership::identity_of(int rank) const {
  const auto found = directory_->find(rank);
  return found ? found->identity : Identity();
}

int Membership::rank_of(const Identity& identity) const {
  for (int rank = 0; rank < size_; ++rank)
    if (identity_of(rank) == identity) return rank;
  return -1;
}

std::vector<std::byte> Membership::contribution(std::uint64_t instance) const {
  transport::Engine& engine = home_->engine();
  return Directory::contribution(engine.identity(), engine.rails(), {first_flow_, instance});
}

Result<void> Membership::join(std::span<const std::vector<std::byte>> contributions) {
  if (contributions.size() != static_cast<std::size_t>(size_)) {
    return Error(Status::invalid, fmt::format("{} contributions for {} ranks", contributions.size(), size_));
  }
  auto directory = Directory::open(contributions);
  if (!directory) return std::move(directory.error());
  directory_ = std::make_shared<const Directory>(std::move(*directory));
  const auto first = directory_->find(0);
  if (!first) return first.error().copy();
  transport::Engine& engine = home_->engine();
  // Relaxed: a world that has not been opened yet has nothing outstanding.
  home_->worlds_.fetch_add(1, std::memory_order_relaxed);
  const transport::ProgressGuard hold(engine.progress_lock());
  ranks_ = engine.join({.own = rank_,
                        .size = size_,
                        .instance = first->entry.instance,
                        .first_flow = first_flow_,
                        // Ranks that speak too late are looked up when this object has gone.
                        .find = [directory = directory_](int rank) { return directory->find(rank); }});
  return {};
}

}  // namespace railyard
