#include "transport/engine_telemetry.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "telemetry/summary.hpp"
#include "transport/flow.hpp"
#include "transport/registry.hpp"

namespace railyard::transport {
namespace {

namespace on_context = telemetry::context_field;
namespace on_rail = telemetry::rail_field;
namespace on_link = telemetry::link_field;
namespace on_flow = telemetry::flow_field;

constexpr std::int64_t kLeastPeriod = 20'000'000;  ///< nanoseconds between two publishes
constexpr std::int64_t kMostPeriod = 1'000'000'000;
/// A publish takes at most one part in so many of the time.
constexpr std::int64_t kPeriodPerCost = 500;

std::uint64_t wall_nanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

/// Whose links a route's are: a world's peer has its own, channels may share some.
std::string links_of(const Route& route) { return route.shared() ? fmt::format("shared {}", route.key.number) : "own"; }

std::uint64_t word(std::int64_t value) { return static_cast<std::uint64_t>(value); }

}  // namespace

EngineTelemetry::EngineTelemetry(Parts parts)
    : parts_(std::move(parts)), context_(parts_.store->add(telemetry::Group::context, {{"context", parts_.context}})) {
  context_.set(on_context::waiting_for_peer, word(-1));
}

EngineTelemetry::~EngineTelemetry() {
  if (parts_.summary) telemetry::print_summary(parts_.store->copy(), parts_.context);
}

std::int64_t EngineTelemetry::publish(Source source) {
  const std::int64_t began = source.clock.now();
  ++publishes_;
  WorldStatistics& statistics = source.statistics;
  if (parts_.more) parts_.more(statistics);
  std::uint64_t queued = 0;
  std::vector<std::uint64_t> in_flight(statistics.rails.size());
  forget_gone(source.registry);
  for (const auto& route : source.registry.routes()) {
    for (const Link& link : route->links) in_flight[link.rail()] += link.bytes_in_flight();
    publish_links(*route);
    for (Flow* const flow : route->flows) {
      queued += flow->sender.queued();
      publish_flow(*flow);
    }
  }
  publish_rails(statistics, in_flight);
  publish_context(source, queued);
  parts_.store->published();

  std::uint64_t sum = statistics.operations_completed + statistics.direct_puts + statistics.direct_gets +
                      statistics.direct_atomics + source.outstanding + queued + flows_.size();
  for (const RailStatistics& rail : statistics.rails) sum += rail.bytes_sent + rail.bytes_received;
  settled_ = sum == std::exchange(last_sum_, sum);
  const std::int64_t now = source.clock.now();
  return now + std::clamp((now - began) * kPeriodPerCost, kLeastPeriod, kMostPeriod);
}

/// Before anything is added: what is new may have the labels of what is gone.
void EngineTelemetry::forget_gone(const Registry& registry) {
  for (const auto& route : registry.routes()) {
    const auto known = routes_.find(route.get());
    if (known != routes_.end() && known->second.name == route->name.in) known->second.seen = publishes_;
    for (const Flow* const flow : route->flows) {
      const auto of_flow = flows_.find(flow);
      if (of_flow != flows_.end() && of_flow->second.session == flow->session_in) of_flow->second.seen = publishes_;
    }
  }
  std::erase_if(routes_, [this](const auto& each) { return each.second.seen != publishes_; });
  std::erase_if(flows_, [this](const auto& each) { return each.second.seen != publishes_; });
}

void EngineTelemetry::publish_context(const Source& source, std::uint64_t queued) {
  const WorldStatistics& from = source.statistics;
  const std::pair<std::uint32_t, std::uint64_t> values[] = {
      {on_context::operations_completed, from.operations_completed},
      {on_context::operations_outstanding, source.outstanding},
      {on_context::operations_queued, queued},
      {on_context::acknowledgements_sent, from.acknowledgements_sent},
      {on_context::held_out_of_order, from.held_out_of_order},
      {on_context::dropped_stale, from.dropped_stale},
      {on_context::dropped_malformed, from.dropped_malformed},
      {on_context::backpressure, from.backpressure},
      {on_context::links_suspected, from.links_suspected},
      {on_context::links_lost, from.links_lost},
      {on_context::links_rejoined, from.links_rejoined},
      {on_context::fences, from.fences},
      {on_context::segments_replayed, from.segments_replayed},
      {on_context::peers_lost, from.peers_lost},
      {on_context::peers_stalled, from.peers_stalled},
      {on_context::direct_puts, from.direct_puts},
      {on_context::direct_gets, from.direct_gets},
      {on_context::direct_atomics, from.direct_atomics},
      {on_context::direct_bytes_put, from.direct_bytes_put},
      {on_context::direct_bytes_got, from.direct_bytes_got},
      {on_context::direct_wakes, from.direct_wakes},
      {on_context::passes, source.passes},
  };
  for (const auto& [field, value] : values) context_.set(field, value);
}

void EngineTelemetry::publish_rails(const WorldStatistics& statistics, const std::vector<std::uint64_t>& in_flight) {
  for (std::size_t i = 0; i < statistics.rails.size(); ++i) {
    const RailStatistics& from = statistics.rails[i];
    if (rails_.size() <= i) {
      rails_.push_back(parts_.store->add(telemetry::Group::rail, {{"context", parts_.context},
                                                                  {"rail", fmt::format("{}", i)},
                                                                  {"device", from.name},
                                                                  {"provider", from.provider}}));
    }
    telemetry::Record& rail = rails_[i];
    rail.set(on_rail::bytes_sent, from.bytes_sent);
    rail.set(on_rail::bytes_received, from.bytes_received);
    rail.set(on_rail::frames_sent, from.frames_sent);
    rail.set(on_rail::writes_sent, from.writes_sent);
    rail.set(on_rail::reads_sent, from.reads_sent);
    rail.set(on_rail::bytes_in_flight, in_flight[i]);
    rail.set(on_rail::rate, from.rate);
    rail.set(on_rail::up, std::uint64_t{from.up});
    rail.set(on_rail::links, std::uint64_t{from.links});
    rail.set(on_rail::links_down, std::uint64_t{from.links_down});
    rail.set(on_rail::deadline, from.deadline);
    rail.set(on_rail::sees_one_sided, std::uint64_t{from.sees_one_sided});
    rail.set(on_rail::links_suspected, from.links_suspected);
    rail.set(on_rail::links_lost, from.links_lost);
    rail.set(on_rail::segments_replayed, from.segments_replayed);
  }
}

void EngineTelemetry::publish_links(Route& route) {
  const auto [at, made] = routes_.try_emplace(&route);
  OfRoute& of = at->second;
  if (made) {
    of.name = route.name.in;
    for (const Link& link : route.links) {
      of.links.push_back(
          parts_.store->add(telemetry::Group::link, {{"context", parts_.context},
                                                     {"peer", route.who},
                                                     {"route", fmt::format("{}", route.number)},
                                                     {"links", links_of(route)},
                                                     {"class", fmt::format("{}", route.key.service_class)},
                                                     {"rail", fmt::format("{}", link.rail())},
                                                     {"remote_rail", fmt::format("{}", link.remote_rail())}}));
    }
  }
  for (std::size_t i = 0; i < route.links.size(); ++i) {
    Link& link = route.links[i];
    telemetry::Record& record = of.links[i];
    const auto histogram = [&record](std::uint32_t field) {
      return record.histogram<telemetry::Octaves>(field, on_link::chunk_latency);
    };
    link.chunk_latency = histogram(on_link::chunk_latency);
    link.frame_latency = histogram(on_link::frame_latency);
    record.set(on_link::bytes_delivered, link.delivered());
    record.set(on_link::bytes_in_flight, link.bytes_in_flight());
    record.set(on_link::frames_in_flight, std::uint64_t{link.frames_in_flight()});
    record.set(on_link::rate, link.rate());
    record.set(on_link::state, static_cast<std::uint64_t>(link.health.state));
    record.set(on_link::epoch, std::uint64_t{link.health.epoch});
    record.set(on_link::failures, std::uint64_t{link.attempts.failures});
  }
}

telemetry::Labels EngineTelemetry::labels_of(const Flow& flow) const {
  return {{"context", parts_.context},
          {"peer", flow.route->who},
          {"route", fmt::format("{}", flow.route->number)},
          {"flow", fmt::format("{}", flow.id)}};
}

void EngineTelemetry::publish_flow(Flow& flow) {
  const auto [at, made] = flows_.try_emplace(&flow);
  OfFlow& of = at->second;
  if (made) {
    of.session = flow.session_in;
    of.record = parts_.store->add(telemetry::Group::flow, labels_of(flow));
  }
  const auto relaxed = [](const auto& value) { return value.load(std::memory_order_relaxed); };
  flow.latency = of.record.histogram<telemetry::Octaves>(on_flow::latency, on_flow::latency);
  of.record.set(on_flow::operations_submitted, flow.submitted.load(std::memory_order_relaxed));
  of.record.set(on_flow::operations_completed, relaxed(flow.completed));
  of.record.set(on_flow::operations_outstanding, relaxed(flow.outstanding));
  of.record.set(on_flow::operations_queued, std::uint64_t{flow.sender.queued()});
  of.record.set(on_flow::segments_unacknowledged,
                std::uint64_t{flow.sender.next_sequence() - flow.sender.acknowledged()});
  of.record.set(on_flow::credits, word(flow.sender.credits()));
  of.record.set(on_flow::bytes_in_flight, flow.bytes_in_flight);
  of.record.set(on_flow::failed, std::uint64_t{relaxed(flow.failed)});
}

void EngineTelemetry::took(std::size_t rail, std::uint32_t field, std::atomic<std::uint64_t>* of_link,
                           std::uint64_t nanoseconds) {
  auto* const of_rail =
      rail < rails_.size() ? rails_[rail].histogram<telemetry::Octaves>(field, on_rail::chunk_latency) : nullptr;
  for (auto* const histogram : {of_link, of_rail})
    if (histogram != nullptr) telemetry::count_in<telemetry::Octaves>(histogram, nanoseconds);
}

void EngineTelemetry::begin_wait(telemetry::Waiting what, int peer) {
  context_.set(on_context::waiting_for_peer, word(peer));
  context_.set(on_context::waiting_since, wall_nanoseconds());
  context_.set(on_context::waiting, static_cast<std::uint64_t>(what));
}

void EngineTelemetry::end_wait() {
  context_.set(on_context::waiting, std::uint64_t{0});
  context_.set(on_context::waiting_for_peer, word(-1));
}

void EngineTelemetry::count_stall() { context_.add(on_context::stalls, 1); }

}  // namespace railyard::transport
