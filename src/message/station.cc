#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <thread>
#include <type_traits>

#include "accelerator/accelerator.hpp"
#include "base/entropy.hpp"
#include "base/log.hpp"
#include "fabric/rail.hpp"
#include "message/handle.hpp"
#include "message/station_state.hpp"

namespace railyard {
namespace {

/// The porter's alarms are looked at so often.
constexpr std::int64_t kPorterEvery = 20'000'000;
/// How long a closing station waits for the peers of channels that were closed a moment ago.
constexpr std::int64_t kFarewell = 1'000'000'000;

/// Has no state and no end: a station may be closed by a static destructor, and whoever outlives it may go on using it.
Clock& steady_clock() {
  static_assert(std::is_trivially_destructible_v<SteadyClock>);
  static SteadyClock clock;
  return clock;
}

/// Each engine's thread may keep a core busy copying, beside the caller's own; beyond four the memory is the limit.
/// NICs that move bytes by themselves leave nothing to share out: one engine, so that a peer is reached by one set of
/// links.
std::uint32_t contexts_for(const Settings& settings, std::span<const std::unique_ptr<fabric::Rail>> rails) {
  if (settings.contexts != 0) return settings.contexts;
  const auto shared = [](const auto& rail) { return rail->fabric().starts_with(fabric::kSharedMemoryFabric); };
  const bool network = !std::ranges::all_of(rails, shared);
  const auto alone = [&](const auto& rail) { return shared(rail) || rail->capabilities().progresses_alone; };
  if (network && std::ranges::all_of(rails, alone)) return 1;
  return std::clamp(std::thread::hardware_concurrency() / 4, 1U, 4U);
}

}  // namespace

Result<std::unique_ptr<StationState>> StationState::open(const Settings& settings) {
  apply_log_settings(settings);
  std::unique_ptr<StationState> station(new StationState(settings));
  if (auto started = station->start(); !started) return std::move(started.error());
  return station;
}

Result<void> StationState::start() {
  auto porter = message::Porter::open(settings_, steady_clock());
  if (!porter) return std::move(porter.error());
  porter_ = std::move(*porter);
  static_cast<void>(accelerator::may_have_gpus());  // messages may lie in their memory
  const Identity identity = Identity::make();
  for (std::uint32_t place = 0, count = 1; place < count; ++place) {
    auto rails = fabric::open_rails(settings_);
    if (!rails) return std::move(rails.error());
    if (place == 0) count = contexts_for(settings_, *rails);
    message::ContextParts parts;
    parts.settings = settings_;
    parts.settings.threads = "multiple";
    parts.clock = &steady_clock();
    parts.rails = std::move(*rails);
    parts.identity = identity;
    parts.place = place;
    if (auto filled = fill_random(std::as_writable_bytes(std::span(&parts.seed, 1))); !filled) return filled;
    auto context = message::Context::open(std::move(parts));
    if (!context) return std::move(context.error());
    contexts_.push_back(std::move(*context));
  }
  for (std::size_t i = 0; i < contexts_.size(); ++i) {
    message::Context& context = *contexts_[i];
    transport::ProgressThread::Options options;
    options.name = fmt::format("railyard {}", i);
    // One engine is there because there are few cores, or because its rails move bytes by themselves.
    options.shares_work = contexts_.size() > 1;
    std::function<bool()> pass = [&context] { return context.try_pass(); };
    if (i == 0) {
      options.descriptor = porter_->descriptor();
      options.longest_sleep = kPorterEvery;
      options.meanwhile = [this] { porter_->progress(); };
      pass = [this, &context] {
        const bool moved = context.try_pass();
        return porter_->progress() || moved;
      };
    }
    threads_.push_back(std::make_unique<transport::ProgressThread>(context.engine(), std::move(pass), options));
  }
  return {};
}

StationState::~StationState() {
  // What was closed a moment ago still has its farewells under way, and perhaps messages whose sends are done.
  const std::int64_t began = steady_clock().now();
  const std::int64_t most = std::max(kFarewell, std::int64_t{settings_.timeout_ms} * 1'000'000);
  const auto any = [this](auto&& question) {
    return std::ranges::any_of(contexts_, [&](const auto& context) { return question(*context); });
  };
  while (any([](message::Context& context) { return context.leaving(); })) {
    const std::int64_t waited = steady_clock().now() - began;
    if (waited >= most) break;
    if (waited >= kFarewell && !any([](message::Context& context) { return context.owes(); })) break;
    steady_clock().idle();
  }
  threads_.clear();
  porter_.reset();
  for (const auto& context : contexts_) context->close();
}

// ---- Connecting ----

message::Context& StationState::least_used() {
  return context_for(next_context_.fetch_add(1, std::memory_order_relaxed));
}

Result<void> StationState::begin(Handle& handle, Attempt attempt) {
  auto begun = porter_->begin(handle, attempt.context->hello(attempt.joining));
  if (!begun) {
    const transport::BatonHold hold(attempt.context->engine().baton());
    attempt.context->abandon(attempt.joining);
    return begun;
  }
  const std::scoped_lock lock(mutex_);
  attempts_[message::meeting_of(handle)] = std::move(attempt);
  return {};
}

Result<std::shared_ptr<ChannelState>> StationState::conclude(Attempt& attempt, std::span<const std::byte> welcome) {
  const transport::BatonHold hold(attempt.context->engine().baton());
  auto channel = attempt.context->conclude(attempt.joining, welcome);
  if (!channel) attempt.context->abandon(attempt.joining);
  return channel;
}

Result<std::unique_ptr<Channel>> StationState::connect(Handle& handle, const ConnectOptions& options) {
  if (!porter_->begun(handle)) {
    Attempt attempt;
    attempt.context = &least_used();
    {
      const transport::BatonHold hold(attempt.context->engine().baton());
      auto joining = attempt.context->begin(options.service_class, true);
      if (!joining) return std::move(joining.error());
      attempt.joining = std::move(*joining);
    }
    if (auto begun = begin(handle, std::move(attempt)); !begun) return std::move(begun.error());
  }
  porter_->progress();
  const std::uint64_t id = message::meeting_of(handle);
  auto welcome = porter_->welcome(handle);
  if (welcome && !welcome->has_value()) return std::unique_ptr<Channel>();
  Attempt attempt;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = attempts_.extract(id);
    if (found.empty()) return Error(Status::invalid, "this handle is being connected by somebody else");
    attempt = std::move(found.mapped());
  }
  if (!welcome) {
    const transport::BatonHold hold(attempt.context->engine().baton());
    attempt.context->abandon(attempt.joining);
    return std::move(welcome.error());
  }
  auto channel = conclude(attempt, **welcome);
  if (!channel || *channel == nullptr) {
    porter_->abandon(handle);
    if (!channel) return std::move(channel.error());
    if (auto begun = begin(handle, std::move(attempt)); !begun) return std::move(begun.error());
    return std::unique_ptr<Channel>();
  }
  if (auto finished = porter_->finish(handle, {}); !finished) {
    const transport::BatonHold hold(attempt.context->engine().baton());
    (*channel)->end_at_once("the listener went away");
    return std::move(finished.error());
  }
  porter_->progress();
  return wrap(std::move(*channel));
}

void StationState::abandon(Handle& handle) {
  if (!porter_->begun(handle)) return;
  const std::uint64_t id = message::meeting_of(handle);
  porter_->abandon(handle);
  const std::scoped_lock lock(mutex_);
  const auto found = attempts_.extract(id);
  if (found.empty()) return;
  message::Context& context = *found.mapped().context;
  const transport::BatonHold hold(context.engine().baton());
  context.abandon(found.mapped().joining);
}

StationStatistics StationState::statistics() {
  StationStatistics statistics;
  for (const auto& context : contexts_) {
    const transport::BatonHold hold(context->engine().baton());
    statistics.channels += static_cast<std::uint32_t>(context->channels());
    statistics.channels_opened += context->channels_opened();
    statistics.routes_opened += context->routes_opened();
    statistics.joins_refused += context->joins_refused();
    for (const auto& route : context->engine().registry().routes()) {
      ++statistics.routes;
      if (route->key.number == transport::RouteKey::kPrivate) ++statistics.private_routes;
    }
    statistics.engines.push_back(context->engine().statistics());
  }
  return statistics;
}

// ---- Listening ----

Result<std::unique_ptr<Listener>> StationState::listen() {
  auto state = std::make_unique<ListenerState>(*this);
  if (auto started = state->start(); !started) return std::move(started.error());
  return std::unique_ptr<Listener>(new Listener(std::move(state)));
}

Result<void> ListenerState::start() {
  auto handle = station_.porter().open_door(*this);
  if (!handle) return std::move(handle.error());
  handle_ = *handle;
  open_ = true;
  return {};
}

ListenerState::~ListenerState() {
  if (open_) station_.porter().close_door(handle_);
  for (auto& [meeting, guest] : guests_) turn_away(std::move(guest));
  for (Guest& guest : arrived_) turn_away(std::move(guest));
}

void ListenerState::turn_away(Guest guest) {
  const transport::BatonHold hold(guest.context->engine().baton());
  guest.channel->end_at_once("nobody took the channel");
}

Result<std::vector<std::byte>> ListenerState::on_hello(std::uint64_t meeting, std::span<const std::byte> bytes) {
  auto hello = message::read_hello(bytes);
  if (!hello) return std::move(hello.error());
  message::Context& context = station_.context_for(hello->place);
  const transport::BatonHold hold(context.engine().baton());
  auto answer = context.answer(*hello);
  if (!answer) return std::move(answer.error());
  const std::scoped_lock lock(mutex_);
  guests_[meeting] = {&context, std::move(answer->channel)};
  return std::move(answer->welcome);
}

void ListenerState::on_ready(std::uint64_t meeting, std::span<const std::byte> /*ready*/) {
  const std::scoped_lock lock(mutex_);
  auto guest = guests_.extract(meeting);
  if (!guest.empty()) arrived_.push_back(std::move(guest.mapped()));
}

void ListenerState::on_gone(std::uint64_t meeting) {
  Guest guest;
  {
    const std::scoped_lock lock(mutex_);
    auto found = guests_.extract(meeting);
    if (found.empty()) return;
    guest = std::move(found.mapped());
  }
  turn_away(std::move(guest));
}

Result<std::unique_ptr<Channel>> ListenerState::accept() {
  station_.porter().progress();
  const std::scoped_lock lock(mutex_);
  if (arrived_.empty()) return std::unique_ptr<Channel>();
  auto channel = StationState::wrap(std::move(arrived_.front().channel));
  arrived_.pop_front();
  return channel;
}

}  // namespace railyard
