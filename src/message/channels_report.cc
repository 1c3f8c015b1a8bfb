/// Who shares what, as text.
#include <fmt/format.h>

#include "message/channels.hpp"

namespace railyard {
namespace {

std::string describe(const transport::Link& link, const fabric::Rail& rail) {
  return fmt::format(
      "    {} to rail {} of the peer: {}, {:.0f} MB delivered, {:.0f} MB/s, {} KiB in flight, epoch {}\n", rail.name(),
      link.remote_rail(), to_string(link.health.state), static_cast<double>(link.delivered()) / 1e6, link.rate() / 1e6,
      link.bytes_in_flight() / 1024, link.health.epoch + 1);
}

std::string describe(const transport::Route& route, transport::Engine& engine) {
  std::uint64_t waiting = 0;
  for (const transport::Flow* flow : route.flows) waiting += flow->sender.queued();
  const std::size_t channels = route.flows.size();
  std::string text = fmt::format("  {}, route {}, class {}, {}: {} channel{}, {} operations wait\n", route.who,
                                 route.number, route.key.service_class,
                                 route.shared() ? fmt::format("shared links {}", route.key.number) : "its own links",
                                 channels, channels == 1 ? "" : "s", waiting);
  for (const transport::Link& link : route.links) text += describe(link, *engine.rails()[link.rail()]);
  return text;
}

}  // namespace

std::string Channels::report() {
  std::string text;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    transport::Engine& engine = workers_[i]->engine();
    const transport::ProgressGuard hold(engine.progress_lock());
    const WorldStatistics counts = engine.statistics();
    text += fmt::format(
        "engine {}: {} channels on {} routes; {} stale and {} malformed messages dropped, {} times a queue was full, "
        "{} "
        "links lost, {} segments sent again\n",
        i, workers_[i]->channels(), engine.peers().registry().size(), counts.dropped_stale, counts.dropped_malformed,
        counts.backpressure, counts.links_lost, counts.segments_replayed);
    for (const auto& route : engine.peers().registry().routes()) text += describe(*route, engine);
  }
  return text;
}

}  // namespace railyard
