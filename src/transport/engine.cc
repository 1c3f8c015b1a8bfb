#include "transport/engine.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/touch.hpp"

namespace railyard::transport {
namespace {

constexpr std::int64_t kLongestSleep = 500'000'000;  ///< with nothing under way: peers that died are found out
constexpr std::int64_t kLeastWatch = 1'000'000;      ///< between two looks at links with something under way
constexpr std::int64_t kMostWatch = 5'000'000;
constexpr std::int64_t kWordWatch =
    50'000;  ///< between two looks at words of GPUs: nothing wakes us when they are there

}  // namespace

Engine::Engine(EngineParts parts) : core_(std::move(parts), [this] { return agenda(); }) { set_due(); }

Result<std::unique_ptr<Engine>> Engine::open(EngineParts parts) {
  if (parts.rails.empty()) {
    return Error(Status::not_found, "no rail to open: `railyard info` lists what this machine has");
  }
  if (parts.size > UINT16_MAX) {
    return Error(Status::out_of_range, fmt::format("{} ranks: a world holds at most {}", parts.size, UINT16_MAX));
  }
  const int rank = parts.rank;
  const int size = parts.size;
  std::unique_ptr<Engine> engine(new Engine(std::move(parts)));
  if (auto started = engine->start(); !started) return std::move(started.error());
  if (size > 0) {
    auto first = engine->peers().flows().reserve(static_cast<std::size_t>(size));
    if (!first) return std::move(first.error());
    engine->join({.own = rank, .size = size, .first_flow = *first, .find = engine->core_.find_peer});
  }
  return engine;
}

Result<void> Engine::start() {
  if (auto opened = core_.open(); !opened) return opened;
  return reports_.open(core_.most_flows);
}

Engine::~Engine() {
  end_publishing();
  notices_.say_goodbye([this] { return progress(); });
  core_.rails.ring();
  for (const auto& flow : peers_.flows().all()) {
    if (!flow->closing) log_ended(*flow);
  }
  for (const auto& route : peers_.registry().routes()) links_.drop_all(*route);
  // From here on nothing touches the buffers and contexts that are still posted; they go after this.
  core_.rails.stop();
}

// ---- The loop ----

[[gnu::always_inline]] inline std::size_t Engine::poll() {
  return core_.rails.poll([this](RailState& rail, const fabric::Event& event) {
    using Kind = fabric::Event::Kind;
    if (event.kind == Kind::received)
      return inbound_.on_message(rail, static_cast<memory::Buffer*>(event.context), event.bytes);
    if (event.kind != Kind::sent && event.kind != Kind::written) return on_rare(rail, event);
    if (static_cast<Tag>(event.context->tag) == Tag::report)
      return reports_.over(static_cast<memory::Buffer*>(event.context));
    inbound_.on_segment_done(static_cast<Segment*>(event.context));
  });
}

/// For those who wait for a rail in the middle of something.
std::size_t Engine::poll_once() { return poll(); }

/// What neither tells of a message nor of a post that went well.
void Engine::on_rare(RailState& rail, const fabric::Event& event) {
  using Kind = fabric::Event::Kind;
  switch (event.kind) {
    case Kind::read:
      rail.statistics.bytes_received += static_cast<Segment*>(event.context)->bytes;
      return inbound_.on_segment_done(static_cast<Segment*>(event.context));
    case Kind::landed:
      return inbound_.on_landed(rail, event);
    case Kind::failed:
      return on_failed(rail, event);
    case Kind::lost:
      return failover_.on_lost(rail, event);
    case Kind::left:
      if (Route* const route = peers_.registry().find_inbound(event.link.id)) probes_.check_on(*route);
      return;
    case Kind::rail_down:
    case Kind::rail_up:
      return failover_.on_rail_state(rail, event.kind == Kind::rail_down);
    case Kind::received:
    case Kind::sent:
    case Kind::written:
      return;  // `poll` knows them
  }
}

void Engine::on_failed(RailState& rail, const fabric::Event& event) {
  const std::string why = rail.rail->describe_error(event.error);
  if (event.context == nullptr) {
    log_warn(rail.rail->in_log(), "reported an error without an operation: {}", why);
    return;
  }
  switch (static_cast<Tag>(event.context->tag)) {
    case Tag::receive_buffer:  // a message cut short: its link ended
      RailSet::took_receive(rail);
      ++core_.counts.dropped_stale;
      return core_.rails.give_receive(rail, static_cast<memory::Buffer*>(event.context));
    case Tag::report:
      return reports_.over(static_cast<memory::Buffer*>(event.context));
    case Tag::segment:
      return failover_.on_failed(*static_cast<Segment*>(event.context), event.blame, why);
  }
}

bool Engine::progress() {
  if (core_.waiting.just_woke() && watched_.recent() != nullptr) [[unlikely]]
    warm_up(*watched_.recent());
  core_.now = core_.clock->now();
  std::size_t happened = poll();
  if (!exposed_.words().empty() && inbound_.end_words()) ++happened;
  if (inbound_.any_ready() && inbound_.release_ready()) ++happened;
  if (transmitter_.has_work() && transmitter_.transmit()) ++happened;
  if (reports_.due() || (happened == 0 && reports_.any_owed())) {
    if (reports_.send(happened == 0 ? Reports::When::idle : Reports::When::busy)) ++happened;
  }
  if (core_.has_chores) [[unlikely]]
    happened += do_chores();
  // Whoever was woken by something is to have it first: the rest is long due anyway, and comes with the next pass.
  if (core_.now >= due_at_ && (happened == 0 || !core_.waiting.just_woke())) [[unlikely]]
    do_what_is_due();
  core_.rails.ring();
  core_.waiting.passed(core_.now, happened != 0);
  return happened != 0;
}

/// What is rarely there to do.
std::size_t Engine::do_chores() {
  std::size_t happened = 0;
  failover_.fail_broken();
  if (notices_.any() && notices_.answer()) ++happened;
  if (fence_requests_.any() && fence_requests_.answer()) ++happened;
  if (refusals_.any() && refusals_.tell()) ++happened;
  if (losses_.any() && losses_.end()) ++happened;
  if (core_.rails_stuck) revocation_.stop_stuck_rails();
  if (!peers_.late().empty()) part_with_late();
  if (leaving_ != 0) retire();
  core_.has_chores = !peers_.late().empty() || poster_.any_failed() || notices_.any() || fence_requests_.any() ||
                     refusals_.any() || losses_.any() || core_.rails_stuck || leaving_ != 0;
  return happened;
}

/// What comes round by the clock.
void Engine::do_what_is_due() {
  if (core_.now >= health_.due()) health_.look();
  if (core_.now >= publish_at_) publish();
  set_due();
}

void Engine::set_due() { due_at_ = std::min(health_.due(), publish_at_); }

/// How long nothing needs to be done if nobody says anything. Whoever asks goes to sleep: no peer waits for that.
Waiting::Agenda Engine::agenda() {
  report_now();
  const bool unfinished = transmitter_.has_work() || reports_.any_owed() || inbound_.any_ready() || core_.has_chores;
  std::int64_t next_look = kLongestSleep;
  if (!exposed_.words().empty()) {
    next_look = kWordWatch;
  } else if (unfinished) {
    next_look = kLeastWatch;
  } else if (!watched_.empty()) {
    next_look = std::clamp(core_.deadline_floor / 4, kLeastWatch, kMostWatch);
  }
  // What a reader of the telemetry sees is never older than what happened last.
  if (core_.telemetry != nullptr && !core_.telemetry->settled())
    next_look = std::min(next_look, std::max(publish_at_ - core_.clock->now(), kLeastWatch));
  return {next_look, completions_.outstanding() != 0 || !watched_.empty()};
}

[[gnu::hot]] bool Engine::pass(Pace& pace) {
  bool moved = false;
  if (core_.progress_lock.try_take()) {
    moved = progress();
    core_.progress_lock.give();
  }
  pace.passed(moved || completions_.outstanding() != 0);
  return moved;
}

void Engine::report_now() {
  if (reports_.any_owed()) reports_.send(Reports::When::now);
  core_.rails.ring();
}

/// Objects that were used last time are likely to be used next.
void Engine::warm_up(const Route& route) const {
  touch(*this);
  core_.rails.warm_up();
  core_.pools.warm_up();
  touch(route);
  if (!route.flows.empty()) touch(*route.flows.front());
  touch(route.links.data(), route.links.size() * sizeof(Link));
  for (const Link& link : route.links) core_.rails[link.rail()].warm_up(link.remote());
}

// ---- Peers ----

void Engine::check_on(std::uint32_t id) {
  if (const auto found = peers_.flow(id)) check_on(*(*found)->route);
}

void Engine::use_directly(Flow& flow) {
  if (flow.direct.exchange(true, std::memory_order_relaxed)) return;
  if (!core_.failover || flow.route->handshake_done || flow.failed.load(std::memory_order_relaxed)) return;
  handshakes_.begin();
  watched_.watch(*flow.route);
}

void Engine::wake_peer(std::uint32_t flow) {
  const ProgressGuard hold(core_.progress_lock);
  const Flow* const known = peers_.existing(flow);
  if (known == nullptr || known->failed.load(std::memory_order_relaxed)) return;
  ++core_.counts.direct_wakes;
  for (const Link& link : known->route->links)
    if (link.up() && core_.rails[link.rail()].wake(link.remote())) return;
  check_on(*known->route);  // where no rail rings, anything that arrives there does
}

// ---- What it tells of itself ----

void Engine::begin_publishing(EngineTelemetry::Parts parts) {
  if (parts.store == nullptr) return;
  core_.telemetry = std::make_unique<EngineTelemetry>(std::move(parts));
  namespace field = telemetry::context_field;
  const auto histogram = [this](std::uint32_t of) {
    return core_.telemetry->context().histogram(of, field::put_latency);
  };
  completions_.sampler().start(core_.clock, {histogram(field::put_latency), histogram(field::get_latency),
                                             histogram(field::atomic_latency), histogram(field::message_latency)});
  publish();
}

void Engine::begin_tracing(std::shared_ptr<telemetry::Trace> trace, const std::string& context) {
  core_.trace.begin(std::move(trace), context, rails(), *core_.clock);
  if (core_.trace.on()) completions_.sampler().want_all();
}

void Engine::publish() {
  publish_at_ = core_.telemetry->publish(
      {*core_.clock, peers_.registry(), statistics(), completions_.outstanding(), core_.waiting.passes()});
  completions_.sampler().refresh();
  poster_.time_next();
  set_due();
}

void Engine::end_publishing() {
  if (core_.telemetry == nullptr) return;
  publish();
  completions_.sampler().stop();
  core_.telemetry.reset();
  publish_at_ = INT64_MAX;
  set_due();
}

WorldStatistics Engine::statistics() const {
  WorldStatistics copy = core_.counts;
  copy.backpressure += core_.rails.exhausted();
  for (const RailState& rail : core_.rails.states()) {
    RailStatistics& of_rail = copy.rails.emplace_back(rail.statistics);
    of_rail.up = !rail.down;
    const fabric::OneSided one_sided = rail.rail->one_sided();
    of_rail.bytes_received += one_sided.written;
    of_rail.bytes_sent += one_sided.read;
    of_rail.sees_one_sided = rail.rail->capabilities().sees_one_sided;
  }
  for (const auto& route : peers_.registry().routes()) {
    for (const Link& link : route->links) {
      RailStatistics& rail = copy.rails[link.rail()];
      rail.rate = std::max(rail.rate, link.rate());
      rail.deadline = std::max(rail.deadline, static_cast<double>(link.deadline(core_.deadline_floor)) * 1e-9);
      ++rail.links;
      if (!link.up()) ++rail.links_down;
    }
  }
  return copy;
}

}  // namespace railyard::transport
