#include "transport/peers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.hpp"
#include "transport/pairing.hpp"

namespace railyard::transport {
namespace {

constexpr std::size_t kMostDeparted = 16;  // worlds
constexpr std::size_t kMostLinks = 64;     // to one peer: as many as the scheduler's set of tried ones holds
/// Longest chunk between memory of GPUs: a copy of it takes 40 us within one, and 1.3 ms between two over PCIe.
constexpr std::size_t kDeviceChunk = std::size_t{64} << 20U;

std::uint64_t session(const Identity& from, const Identity& to, std::uint64_t world) {
  // FNV-1a over both identities, which are random and known to the job alone, and the world's number: both ends mean
  // the same two processes in the same world.
  std::uint64_t hash = 14695981039346656037U;
  for (const auto* identity : {&from, &to}) {
    for (const std::uint8_t byte : identity->bytes) hash = (hash ^ byte) * 1099511628211U;
  }
  for (; world != 0; world >>= 8U) hash = (hash ^ (world & 0xffU)) * 1099511628211U;
  return hash;
}

/// `number`: the same at both ends. Frames of both go over one link. Chunks that meet on one connection hold each other
/// up (both ends send on it while the other's bytes come in), so those of one end go over the next.
void choose_links(Flow& flow, std::uint64_t number) {
  const std::size_t links = flow.shares.size();
  const bool next = flow.route->name.in < flow.route->name.out;
  flow.first_link = static_cast<std::uint32_t>(number % links);
  flow.small_chunks = static_cast<std::uint32_t>((number + (next ? 1 : 0)) % links);
}

}  // namespace

Peers::Peers(Core& core, Links& links) : core_(core), links_(links), flows_(core.most_flows) {}

// ---- Worlds ----

const Ranks* Peers::join(Ranks ranks) {
  worlds_.push_back(std::make_unique<const Ranks>(std::move(ranks)));
  return worlds_.back().get();
}

void Peers::forget(const Ranks& ranks) {
  const auto found = std::ranges::find(worlds_, &ranks, &std::unique_ptr<const Ranks>::get);
  departed_.push_back({std::move(*found), false});
  worlds_.erase(found);
}

bool Peers::any_route(const Ranks& world) const {
  return std::ranges::any_of(registry_.routes(), [&world](const auto& route) { return route->world == &world; });
}

void Peers::release_ids() {
  for (Departed& each : departed_) {
    if (each.ids_free || any_route(*each.ranks)) continue;
    flows_.release(each.ranks->first_flow, static_cast<std::size_t>(each.ranks->size));
    each.ids_free = true;
  }
  while (departed_.size() > kMostDeparted && departed_.front().ids_free && !any_route(*departed_.front().ranks))
    departed_.erase(departed_.begin());
}

const Ranks* Peers::world_of(std::uint32_t flow) const {
  const auto found = std::ranges::find_if(worlds_, [flow](const auto& ranks) { return ranks->owns(flow); });
  return found == worlds_.end() ? nullptr : found->get();
}

Result<Flow*> Peers::flow(std::uint32_t id) {
  if (Flow* known = existing(id)) return known;
  const Ranks* const world = world_of(id);
  if (world == nullptr) return Error(Status::not_found, fmt::format("flow {} is no world's", id));
  return make_flow(*world, static_cast<int>(id - world->first_flow));
}

/// A world's peer may speak first: also when the world has left here, which it cannot know.
Flow* Peers::first_arrival(std::uint32_t id) {
  const Ranks* world = world_of(id);
  const bool late = world == nullptr;
  if (late) {
    // Ids come again: the world that had this one last is meant.
    const auto owns = [id](const Departed& each) { return each.ranks->owns(id); };
    const auto departed = std::find_if(departed_.rbegin(), departed_.rend(), owns);
    if (departed == departed_.rend()) return nullptr;
    world = departed->ranks.get();
  }
  const auto made = make_flow(*world, static_cast<int>(id - world->first_flow));
  if (!made) return nullptr;
  if (late) {
    late_.push_back({.flow = *made, .since = core_.now});
    core_.has_chores = true;
  }
  return *made;
}

/// A world's flow: both ends know each other's ranks, and name everything by them.
Result<Flow*> Peers::make_flow(const Ranks& world, int rank) {
  auto found = world.find(rank);
  if (!found) return std::move(found.error());
  const Identity& self = core_.identity;
  const RouteName name = RouteName::make(self, found->identity, world.instance, static_cast<std::uint16_t>(world.own),
                                         static_cast<std::uint16_t>(rank));
  auto route = open_route({.peer = rank,
                           .world = &world,
                           .who = fmt::format("rank {}", rank),
                           .name = name,
                           .key = {.peer = found->identity, .number = RouteKey::kPrivate},
                           .instance = world.instance});
  if (!route) return std::move(route.error());
  Flow* flow = open_flow({*route, static_cast<std::uint16_t>(world.flow_of(rank)),
                          static_cast<std::uint16_t>(found->entry.first_flow + world.own),
                          session(self, found->identity, world.instance),
                          session(found->identity, self, world.instance), nullptr});
  choose_links(*flow, static_cast<std::uint64_t>(world.own + rank));
  flow->first_chunk = flow->first_link;
  return flow;
}

// ---- Routes and flows ----

Result<Route*> Peers::open_route(RouteParts parts) {
  auto found = parts.world != nullptr ? parts.world->find(parts.peer) : core_.find_peer(parts.peer);
  if (!found) return std::move(found.error());
  auto route = std::make_unique<Route>();
  route->peer = parts.peer;
  route->world = parts.world;
  route->who = std::move(parts.who);
  route->name = parts.name;
  route->key = parts.key;
  route->instance = parts.instance;
  if (registry_.find_inbound(route->name.in) != nullptr) {
    return Error(Status::invalid, fmt::format("there is a route of this name to {} already", route->who));
  }
  if (auto connected = connect_route(*route, *found, false); !connected) {
    // Shared memory that cannot be had (no room for another peer, a user of the same number who is another) is no
    // reason to give up while there is a network.
    log_info("{}: {}", route->who, connected.error().text());
    if (auto again = connect_route(*route, *found, true); !again) return std::move(again.error());
  }
  return registry_.add(std::move(route));
}

Flow* Peers::open_flow(const FlowParts& parts) {
  auto flow = std::make_unique<Flow>();
  flow->peer = parts.route->peer;
  flow->id = parts.id;
  flow->remote_id = parts.remote_id;
  flow->session_out = parts.session_out;
  flow->session_in = parts.session_in;
  flow->route = parts.route;
  flow->shares.resize(parts.route->links.size());
  flow->inbox = parts.inbox;
  // The same at both ends and for all flows of the route, and another one on the next route.
  choose_links(*flow, parts.route->instance);
  flow->first_chunk = parts.id % static_cast<std::uint32_t>(flow->shares.size());
  flow->head_since = core_.health_clock;
  flow->receiver.replies.reserve(8);
  parts.route->flows.push_back(flow.get());
  log_debug("flow {} to {}: opened, on {} links", parts.id, parts.route->who, parts.route->links.size());
  return flows_.add(std::move(flow));
}

/// All links of a route, or none.
Result<void> Peers::connect_route(Route& route, const PeerAddress& peer, bool network_only) {
  std::vector<std::string> local_fabrics;
  std::vector<std::string> remote_fabrics;
  for (const auto* rail : core_.rails.views()) local_fabrics.push_back(rail->fabric());
  for (const auto& rail : peer.rails) remote_fabrics.push_back(rail.fabric);
  auto pairs = pair_rails(local_fabrics, remote_fabrics, network_only);
  if (pairs.empty()) {
    return Error(Status::not_found, fmt::format("no rail of {} can be reached", route.who),
                 {.peer = route.peer, .operation = "connect"});
  }
  if (pairs.size() > kMostLinks) pairs.resize(kMostLinks);
  // The peer makes the same pairs; or, where it cannot have shared memory, those without.
  for (const bool without_memory : {false, true}) {
    const auto theirs = pair_rails(local_fabrics, remote_fabrics, without_memory);
    for (std::size_t i = 0; i < std::min(theirs.size(), kMostLinks); ++i) {
      const InboundLink inbound{theirs[i].first, static_cast<std::uint16_t>(i)};
      if (std::ranges::find(route.inbound, inbound) == route.inbound.end()) route.inbound.push_back(inbound);
    }
  }
  const LinkLimits limits{core_.settings.chunk_min, core_.settings.chunk_max, pairs.size() == 1};
  // Any link may have to carry on what another began: no chunk is longer than the shortest limit.
  std::size_t most = SIZE_MAX;
  for (const auto& [local, remote] : pairs) most = std::min(most, core_.rails[local].capabilities().max_write);
  route.max_write = most;
  route.in_memory = std::ranges::all_of(
      pairs, [&](const auto& pair) { return local_fabrics[pair.first].starts_with(fabric::kSharedMemoryFabric); });
  // There a GPU copies straight out of another's memory.
  if (route.in_memory) route.device_chunk = std::min(most, kDeviceChunk);
  route.links.reserve(pairs.size());
  std::size_t dead = 0;
  for (const auto& [local, remote] : pairs) {
    const fabric::Capabilities& capabilities = core_.rails[local].capabilities();
    route.links.emplace_back(local, remote, capabilities.line_rate, most, limits);
    route.moved_by_us |= !capabilities.progresses_alone;
    if (auto connected = links_.connect(route, route.links.back(), peer); !connected) {
      // A rail of ours that has died for good costs its link alone, as if it died later.
      if (connected.status() == Status::rail_failed && ++dead < pairs.size()) {
        log_info("{}", connected.error().text());
        route.links.back().health.on(LinkEvent::unreachable);
        continue;
      }
      route.links.pop_back();
      links_.drop_all(route);
      route.links.clear();
      return connected;
    }
  }
  if (log_enabled(LogLevel::debug)) {
    std::vector<std::string> texts;
    texts.reserve(pairs.size());
    for (const auto& [local, remote] : pairs) texts.push_back(fmt::format("{} with {}", local, remote));
    log_debug("route to {}: our rails paired with its rails: {}", route.who, fmt::join(texts, ", "));
  }
  return {};
}

}  // namespace railyard::transport
