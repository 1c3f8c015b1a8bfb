#include "transport/stall.hpp"

#include <fmt/format.h>

namespace railyard::transport {
namespace {

std::string ago(std::int64_t then, std::int64_t now) {
  return then == 0 ? "never" : fmt::format("{:.1f} s ago", static_cast<double>(now - then) * 1e-9);
}

/// What happened last on the link, as far as its health knows.
std::string last_event(const Link& link, std::int64_t now) {
  if (link.health.lost_at != 0 && !link.up())
    return fmt::format("was lost {} ({})", ago(link.health.lost_at, now), to_string(link.health.cause));
  if (link.health.lost_at != 0) return fmt::format("came back after a loss {}", ago(link.health.lost_at, now));
  return fmt::format("has been {} since {}", to_string(link.health.state), ago(link.health.state_at, now));
}

}  // namespace

std::string describe_flow(const Engine& engine, const Flow& flow) {
  const Route& route = *flow.route;
  const std::int64_t now = engine.clock().now();
  std::string text = fmt::format(
      "{} operations outstanding, {} waiting to be sent, sequence {} of {} acknowledged, {} credits left; last message "
      "from {} {}{}",
      flow.outstanding.load(std::memory_order_relaxed), flow.sender.queued(), flow.sender.acknowledged(),
      flow.sender.next_sequence(), flow.sender.credits(), route.who, ago(route.message_at, now),
      route.stalled ? ", its process lives" : "");
  if (const Segment* oldest = flow.sender.oldest()) {
    text += fmt::format("; sequence {} went by rail {}", oldest->sequence, route.links[oldest->link].rail());
    if (oldest->attempts > 1) text += fmt::format(" (attempt {})", oldest->attempts);
  }
  for (const Link& link : route.links) {
    text += fmt::format("; rail {} ({}): {} bytes and {} frames in flight, {}", link.rail(),
                        engine.rails()[link.rail()]->name(), link.bytes_in_flight(), link.frames_in_flight(),
                        last_event(link, now));
  }
  return text;
}

std::string describe_peer(Engine& engine, std::uint32_t id) {
  const ProgressGuard hold(engine.progress_lock());
  const Flow* const flow = engine.peers().existing(id);
  return flow == nullptr ? std::string("nothing was ever sent to it") : describe_flow(engine, *flow);
}

}  // namespace railyard::transport
