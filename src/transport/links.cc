#include "transport/links.hpp"

#include <fmt/format.h>

#include "base/log.hpp"

namespace railyard::transport {
namespace {

fabric::LinkTag tag_of(const Route& route, const Link& link) {
  const std::uint16_t index = route.index_of(link);
  return {RouteName::of_link(route.name.out, index), link.health.epoch, RouteName::of_link(route.name.in, index),
          route.key.traffic_class()};
}

}  // namespace

Result<void> Links::connect(Route& route, Link& link, const PeerAddress& peer) {
  fabric::Rail& rail = core_.rails[link.rail()];
  if (link.remote_rail() >= peer.rails.size()) {
    return Error(Status::not_found, fmt::format("{} has no rail {}", route.who, link.remote_rail()));
  }
  const auto connected = rail.connect(peer.rails[link.remote_rail()].address, tag_of(route, link));
  if (!connected) {
    return Error(connected.status(),
                 fmt::format("rail {} cannot reach {}: {}", rail.name(), route.who, connected.error().message()),
                 {.peer = route.peer, .rail = link.rail(), .operation = "connect"});
  }
  auto& refs = by_rail_[link.rail()];
  if (refs.size() <= *connected) refs.resize(*connected + 1);
  refs[*connected] = {&route, route.index_of(link)};
  link.restart(*connected);
  link.health.stood = false;
  link.health.since = core_.health_clock;
  link.health.state_at = core_.clock->now();
  if (log_enabled(LogLevel::debug)) {
    const std::string where = rail.describe_address(peer.rails[link.remote_rail()].address);
    log_debug(rail.in_log(), "link to {}: connecting to its rail {}{}, epoch {}", route.who, link.remote_rail(),
              where.empty() ? "" : fmt::format(" at {}", where), link.health.epoch + 1);
  }
  return {};
}

void Links::disconnect(const Link& link) {
  if (const Route* const route = by_rail_[link.rail()][link.remote()].route;
      route != nullptr && log_enabled(LogLevel::debug))
    log_debug(core_.rails[link.rail()].in_log(), "link to {}: closed, epoch {}", route->who, link.health.epoch + 1);
  by_rail_[link.rail()][link.remote()] = {};
  core_.rails[link.rail()].disconnect(link.remote());
}

}  // namespace railyard::transport
