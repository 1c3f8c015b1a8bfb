#include "message/channels.hpp"

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

namespace railyard {
namespace {

/// With as many, a core may be kept busy by watching callers.
constexpr unsigned kManyCores = 8;
/// How long a closing context waits for the peers of channels that were closed a moment ago.
constexpr std::int64_t kDisconnectWait = 1'000'000'000;

/// Has no state and no end: a context may be closed by a static destructor, and whoever outlives it may go on using it.
Clock& steady_clock() {
  static_assert(std::is_trivially_destructible_v<SteadyClock>);
  static SteadyClock clock;
  return clock;
}

/// Of all contexts of the process.
message::Patience& patience() {
  static_assert(std::is_trivially_destructible_v<message::Patience>);
  static constinit message::Patience shared;
  return shared;
}

/// Each engine's thread may keep a core busy copying, beside the caller's own; beyond four the memory is the limit.
/// NICs that move bytes by themselves leave nothing to share out: one engine, so that a peer is reached by one set of
/// links.
std::uint32_t workers_for(const Settings& settings, std::span<const std::unique_ptr<fabric::Rail>> rails) {
  if (settings.workers != 0) return settings.workers;
  const auto shared = [](const auto& rail) { return rail->fabric().starts_with(fabric::kSharedMemoryFabric); };
  const bool network = !std::ranges::all_of(rails, shared);
  const auto alone = [&](const auto& rail) { return shared(rail) || rail->capabilities().progresses_alone; };
  if (network && std::ranges::all_of(rails, alone)) return 1;
  return std::clamp(std::thread::hardware_concurrency() / 4, 1U, 4U);
}

}  // namespace

Result<std::shared_ptr<Channels>> Channels::open(const ContextState& context) {
  std::shared_ptr<Channels> channels(new Channels(context.settings));
  if (auto started = channels->start(context.identity); !started) return std::move(started.error());
  return channels;
}

Result<std::shared_ptr<Channels>> Channels::of(ContextState& context) {
  return context.part(
      &ContextState::channels, [&context] { return open(context); },
      [](Channels& channels, ContextStatistics& statistics) { channels.add_to(statistics); });
}

Result<void> Channels::start(const Identity& identity) {
  auto setup = message::ChannelSetup::open(settings_, steady_clock());
  if (!setup) return std::move(setup.error());
  setup_ = std::move(*setup);
  static_cast<void>(accelerator::may_have_gpus());  // messages may lie in their memory
  for (std::uint32_t worker_index = 0, count = 1; worker_index < count; ++worker_index) {
    auto rails = fabric::open_rails(settings_);
    if (!rails) return std::move(rails.error());
    if (worker_index == 0) count = workers_for(settings_, *rails);
    message::WorkerParts parts;
    parts.settings = settings_;
    parts.settings.threads = "multiple";
    parts.clock = &steady_clock();
    parts.rails = std::move(*rails);
    parts.identity = identity;
    parts.worker_index = worker_index;
    parts.patience = &patience();
    if (auto filled = fill_random(std::as_writable_bytes(std::span(&parts.seed, 1))); !filled) return filled;
    auto worker = message::Worker::open(std::move(parts));
    if (!worker) return std::move(worker.error());
    workers_.push_back(std::move(*worker));
  }
  if (const auto store = telemetry::Store::of_process(settings_))
    for (const auto& worker : workers_) worker->begin_publishing(settings_, store);
  if (const auto trace = telemetry::Trace::of_process(settings_)) {
    for (std::size_t i = 0; i < workers_.size(); ++i)
      workers_[i]->engine().begin_tracing(trace, fmt::format("channels {}", i));
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    message::Worker& worker = *workers_[i];
    transport::ProgressThread::Options options;
    options.name = fmt::format("railyard {}", i);
    // Also where one engine is enough (its rails move bytes by themselves, or somebody said so): callers that got what
    // they waited for owe acknowledgements, and frames of the peer wait for these.
    options.shares_work = workers_.size() > 1 || std::thread::hardware_concurrency() >= kManyCores;
    std::function<bool()> pass = [&worker] { return worker.try_pass(); };
    if (i == 0) {
      options.descriptor = setup_->descriptor();
      options.meanwhile = [this] { setup_->progress(); };
      pass = [this, &worker] {
        const bool moved = worker.try_pass();
        return setup_->progress() || moved;
      };
    }
    threads_.push_back(std::make_unique<transport::ProgressThread>(worker.engine(), std::move(pass), options));
    log_debug("progress: thread '{}' makes it; waits: {}", options.name, settings_.wait);
  }
  return {};
}

Channels::~Channels() {
  // What was closed a moment ago still has its disconnects under way, and perhaps messages whose sends are done.
  const std::int64_t began = steady_clock().now();
  const std::int64_t most = std::max(kDisconnectWait, std::int64_t{settings_.timeout_ms} * 1'000'000);
  const auto any = [this](auto&& question) {
    return std::ranges::any_of(workers_, [&](const auto& worker) { return question(*worker); });
  };
  while (any([](message::Worker& worker) { return worker.leaving(); })) {
    const std::int64_t waited = steady_clock().now() - began;
    if (waited >= most) break;
    if (waited >= kDisconnectWait && !any([](message::Worker& worker) { return worker.owes(); })) break;
    steady_clock().idle();
  }
  threads_.clear();
  setup_.reset();
  for (const auto& worker : workers_) worker->close();
}

// ---- Connecting ----

message::Worker& Channels::least_used() { return worker_for(next_worker_.fetch_add(1, std::memory_order_relaxed)); }

Result<void> Channels::begin(Handle& handle, Attempt attempt) {
  auto begun = setup_->begin(handle, attempt.worker->hello(attempt.joining));
  if (!begun) {
    const transport::ProgressGuard hold(attempt.worker->engine().progress_lock());
    attempt.worker->abandon(attempt.joining);
    return begun;
  }
  const std::scoped_lock lock(mutex_);
  attempts_[message::handshake_of(handle)] = std::move(attempt);
  return {};
}

Result<std::shared_ptr<ChannelState>> Channels::conclude(Attempt& attempt, std::span<const std::byte> welcome) {
  const transport::ProgressGuard hold(attempt.worker->engine().progress_lock());
  auto channel = attempt.worker->conclude(attempt.joining, welcome);
  if (!channel) attempt.worker->abandon(attempt.joining);
  return channel;
}

Result<std::unique_ptr<Channel>> Channels::connect(Handle& handle, const ConnectOptions& options) {
  if (!setup_->begun(handle)) {
    Attempt attempt;
    attempt.worker = &least_used();
    {
      const transport::ProgressGuard hold(attempt.worker->engine().progress_lock());
      auto joining = attempt.worker->begin(options.service_class, true);
      if (!joining) return std::move(joining.error());
      attempt.joining = std::move(*joining);
    }
    if (auto begun = begin(handle, std::move(attempt)); !begun) return std::move(begun.error());
  }
  setup_->progress();
  const std::uint64_t id = message::handshake_of(handle);
  auto welcome = setup_->welcome(handle);
  if (welcome && !welcome->has_value()) return std::unique_ptr<Channel>();
  Attempt attempt;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = attempts_.extract(id);
    if (found.empty()) return Error(Status::invalid, "this handle is being connected by somebody else");
    attempt = std::move(found.mapped());
  }
  if (!welcome) {
    const transport::ProgressGuard hold(attempt.worker->engine().progress_lock());
    attempt.worker->abandon(attempt.joining);
    return std::move(welcome.error());
  }
  auto channel = conclude(attempt, **welcome);
  if (!channel || *channel == nullptr) {
    setup_->abandon(handle);
    if (!channel) return std::move(channel.error());
    if (auto begun = begin(handle, std::move(attempt)); !begun) return std::move(begun.error());
    return std::unique_ptr<Channel>();
  }
  if (auto finished = setup_->finish(handle, {}); !finished) {
    const transport::ProgressGuard hold(attempt.worker->engine().progress_lock());
    (*channel)->end_at_once("the listener went away");
    return std::move(finished.error());
  }
  setup_->progress();
  return wrap(std::move(*channel));
}

void Channels::abandon(Handle& handle) {
  if (!setup_->begun(handle)) return;
  const std::uint64_t id = message::handshake_of(handle);
  setup_->abandon(handle);
  const std::scoped_lock lock(mutex_);
  const auto found = attempts_.extract(id);
  if (found.empty()) return;
  message::Worker& worker = *found.mapped().worker;
  const transport::ProgressGuard hold(worker.engine().progress_lock());
  worker.abandon(found.mapped().joining);
}

void Channels::add_to(ContextStatistics& statistics) {
  for (const auto& worker : workers_) {
    const transport::ProgressGuard hold(worker->engine().progress_lock());
    statistics.channels += static_cast<std::uint32_t>(worker->channels());
    statistics.channels_opened += worker->channels_opened();
    statistics.routes_opened += worker->routes_opened();
    statistics.joins_refused += worker->joins_refused();
    for (const auto& route : worker->engine().peers().registry().routes()) {
      ++statistics.routes;
      if (!route->shared()) ++statistics.private_routes;
    }
    statistics.engines.push_back(worker->engine().statistics());
  }
}

// ---- Listening ----

Result<std::unique_ptr<Listener>> Channels::listen() {
  auto state = std::make_unique<ListenerState>(*this);
  if (auto started = state->start(); !started) return std::move(started.error());
  return std::unique_ptr<Listener>(new Listener(std::move(state)));
}

Result<void> ListenerState::start() {
  auto handle = context_.setup().open_listener(*this);
  if (!handle) return std::move(handle.error());
  handle_ = *handle;
  open_ = true;
  return {};
}

ListenerState::~ListenerState() {
  if (open_) context_.setup().close_listener(handle_);
  for (auto& [handshake, inbound] : inbound_) turn_away(std::move(inbound));
  for (InboundChannel& inbound : arrived_) turn_away(std::move(inbound));
}

void ListenerState::turn_away(InboundChannel inbound) {
  const transport::ProgressGuard hold(inbound.worker->engine().progress_lock());
  inbound.channel->end_at_once("nobody took the channel");
}

Result<std::vector<std::byte>> ListenerState::on_hello(std::uint64_t handshake, std::span<const std::byte> bytes) {
  auto hello = message::read_hello(bytes);
  if (!hello) return std::move(hello.error());
  message::Worker& worker = context_.worker_for(hello->worker_index);
  const transport::ProgressGuard hold(worker.engine().progress_lock());
  auto answer = worker.answer(*hello);
  if (!answer) return std::move(answer.error());
  const std::scoped_lock lock(mutex_);
  inbound_[handshake] = {&worker, std::move(answer->channel)};
  return std::move(answer->welcome);
}

void ListenerState::on_ready(std::uint64_t handshake, std::span<const std::byte> /*ready*/) {
  const std::scoped_lock lock(mutex_);
  auto inbound = inbound_.extract(handshake);
  if (!inbound.empty()) arrived_.push_back(std::move(inbound.mapped()));
}

void ListenerState::on_gone(std::uint64_t handshake) {
  InboundChannel inbound;
  {
    const std::scoped_lock lock(mutex_);
    auto found = inbound_.extract(handshake);
    if (found.empty()) return;
    inbound = std::move(found.mapped());
  }
  turn_away(std::move(inbound));
}

Result<std::unique_ptr<Channel>> ListenerState::accept() {
  context_.setup().progress();
  const std::scoped_lock lock(mutex_);
  if (arrived_.empty()) return std::unique_ptr<Channel>();
  auto channel = Channels::wrap(std::move(arrived_.front().channel));
  arrived_.pop_front();
  return channel;
}

}  // namespace railyard
