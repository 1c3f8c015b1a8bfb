/// What happens when a link dies and when it comes back: docs/failover.md.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

constexpr std::int64_t kFirstBackOff = 100'000'000;
constexpr std::int64_t kMostBackOff = 10'000'000'000;
constexpr std::int64_t kMostPause = 1'000'000'000;  ///< between two attempts that fail
constexpr std::int64_t kSteady = 60'000'000'000;    ///< of life without a fault, that halves the back-off
constexpr std::uint8_t kAnswersToRejoin = 3;

std::int64_t next_back_off(std::int64_t before, std::int64_t lived) {
  if (before == 0) return kFirstBackOff;
  const std::int64_t halvings = std::min<std::int64_t>(lived / kSteady, 20);
  return halvings > 0 ? std::max(before >> halvings, kFirstBackOff) : std::min(2 * before, kMostBackOff);
}

}  // namespace

fabric::LinkTag Engine::tag_of(const Flow& flow, const Link& link) {
  return {link_id(flow.session_out, flow.remote_id, flow.index_of(link)), link.health.epoch};
}

std::uint64_t Engine::link_id(std::uint32_t session, std::uint16_t sender, std::uint16_t link) {
  return (std::uint64_t{session} << 32U) | (std::uint64_t{sender} << 16U) | link;
}

// ---- What the rails report ----

void Engine::on_lost(std::size_t rail, const fabric::Event& event) {
  auto& refs = rail_states_[rail].links;
  if (event.remote >= refs.size() || refs[event.remote].flow == nullptr) return;
  Flow& flow = *refs[event.remote].flow;
  Link& link = flow.links[refs[event.remote].index];
  link.health.refused = event.refused;
  if (link.health.state == LinkState::trying) return attempt_failed(flow, link);
  fail_link(flow, link, LossCause::broken, rails_[rail]->describe_error(event.error));
  if (failover_ && nobody_there(flow)) lose_peer(flow, "its process is gone");
}

void Engine::on_left(const fabric::LinkTag& tag) {
  const auto peer = static_cast<std::uint16_t>(tag.id >> 16U);
  if (peer >= size_ || !failover_) return;
  const Flow* flow = existing_flow(peer);
  if (flow != nullptr && flow->session_in == tag.id >> 32U) check_on(peer);
}

void Engine::on_rail_state(std::size_t rail, bool down) {
  RailState& state = rail_states_[rail];
  if (state.down == down) return;
  state.down = down;
  log_warn("rail {}: its interface is {}", rails_[rail]->name(), down ? "down" : "up again");
  if (!down) return;
  for (const auto& flow : flow_storage_) {
    for (Link& link : flow->links) {
      if (link.rail() == rail) fail_link(*flow, link, LossCause::local_down, "");
    }
  }
}

// ---- A link dies ----

void Engine::fail_link(Flow& flow, Link& link, LossCause cause, const std::string& why) {
  LinkHealth& health = link.health;
  if (health.state == LinkState::down || flow.failed.load(std::memory_order_relaxed)) return;
  const std::string reason = why.empty() ? to_string(cause) : fmt::format("{}: {}", to_string(cause), why);
  if (!failover_) {
    return fail_flow(flow, Error(Status::rail_failed,
                                 fmt::format("the link to rank {} failed on rail {}: {}", flow.peer,
                                             rails_[link.rail()]->name(), reason),
                                 {flow.peer, link.rail(), "link", flow.acknowledged}));
  }
  if (health.state == LinkState::trying) return attempt_failed(flow, link);

  const std::uint16_t index = flow.index_of(link);
  std::uint32_t waiting = 0;
  for (Unit* unit = flow.unacknowledged.head(); unit != nullptr; unit = unit->next) {
    if (unit->link != index || unit->again) continue;
    unit->lost = true;
    ++waiting;
  }
  if (waiting > 0 || !link.idle()) {
    health.unfenced = true;
    health.dead_epoch = health.epoch;
    health.fence_asked_at = 0;
  }
  drop_link(link);
  health.suspect = false;
  health.cause = cause;
  health.back_off = next_back_off(health.back_off, beat_ - health.since);
  health.since = beat_;
  const auto left = std::ranges::count_if(flow.links, &Link::up);
  // With nothing left, the next attempt cannot wait.
  health.next_try = beat_ + (left > 0 ? health.back_off : 0);
  ++counts_.links_lost;
  watch(flow);
  const bool idle = flow.outstanding.load(std::memory_order_relaxed) == 0;
  const std::string news =
      fmt::format("link to rank {} on rail {} is down ({}); {} pieces to move, {} of {} links left", flow.peer,
                  rails_[link.rail()]->name(), reason, waiting, left, flow.links.size());
  idle ? log_info("{}", news) : log_warn("{}", news);
}

void Engine::fail_links(Flow& flow, LossCause cause) {
  for (Link& link : flow.links) {
    if (link.up()) fail_link(flow, link, cause, "");
  }
}

/// Asks the target, over whatever link there is, to shut the dead one out; again and again until it has.
void Engine::ask_for_fence(Flow& flow, Link& link) {
  LinkHealth& health = link.health;
  if (health.fence_asked_at != 0 && beat_ - health.fence_asked_at < link.deadline(deadline_floor_)) return;
  // An interface that is up again is no news any more: the peer would give up what has just come back.
  const bool old = health.cause == LossCause::local_down && !rail_states_[link.rail()].down;
  const LossCause cause = old ? LossCause::broken : health.cause;
  const wire::RecordHeader record{wire::RecordKind::fence, static_cast<std::uint8_t>(cause), 0, health.dead_epoch,
                                  place_of(flow, link).pack()};
  if (send_notice(flow, record)) health.fence_asked_at = beat_;
}

/// The target has spoken: what its report lacks goes out again, what it has is finished. Writing that once more could
/// overwrite what the target's program has put there since.
void Engine::release_fenced(Flow& flow, Link& link, const wire::FencedBody& report, std::span<const std::byte> bits) {
  const std::uint16_t index = flow.index_of(link);
  link.health.unfenced = false;
  ++counts_.fences;
  const auto arrived = [&](std::uint32_t sequence) {
    const std::uint32_t ahead = sequence - report.next;
    if (ahead >= 0x80000000U) return true;
    if (ahead / 64U >= report.words) return false;
    std::uint64_t word = 0;
    std::memcpy(&word, bits.data() + ahead / 64U * sizeof word, sizeof word);
    return (word >> (ahead % 64U) & 1U) != 0;
  };
  for (Unit* unit = flow.unacknowledged.head(); unit != nullptr; unit = unit->next) {
    if (unit->link != index || !unit->lost) continue;
    unit->lost = false;
    if (!arrived(unit->sequence)) queue_again(flow, *unit);
  }
  std::erase_if(flow.parked, [&](Unit* unit) {
    if (unit->link != index) return false;
    queue_again(flow, *unit);
    return true;
  });
  log_info("rank {} has shut out the dead link on rail {}: {} pieces to send again", flow.peer,
           rails_[link.rail()]->name(), flow.replay.size());
}

void Engine::queue_again(Flow& flow, Unit& unit) {
  unit.again = true;
  if (unit.posted) return;  // when its rail has let go of it
  flow.replay.push_back(&unit);
  activate(flow);
}

void Engine::forget_again(Flow& flow, const Unit& unit) { std::erase(flow.replay, &unit); }

/// An operation of the unit came back undone.
void Engine::unit_came_back(Flow& flow, Unit& unit, const std::string& why) {
  Link& link = flow.links[unit.link];
  // While it still counts as in flight: a link that dies with something on it must be fenced.
  if (unit.epoch == link.health.epoch && link.up()) fail_link(flow, link, LossCause::broken, why);
  unit.posted = false;
  if (unit.finished || flow.failed.load(std::memory_order_relaxed)) return give_up_unit(&unit);
  leave_flight(unit, false);
  if (unit.again) return queue_again(flow, unit);
  if (unit.operation->sequenced()) return;  // `release_fenced` finds it
  if (link.health.unfenced) {
    flow.parked.push_back(&unit);
  } else {
    queue_again(flow, unit);
  }
}

// ---- A link comes back ----

void Engine::try_link(Flow& flow, Link& link) {
  LinkHealth& health = link.health;
  const auto peer = find_peer_(flow.peer);
  ++health.epoch;
  health.answers = 0;
  health.asked = 0;
  health.life_began = flow.rounds;
  health.refused = false;
  health.since = beat_;
  const auto connected = peer ? connect_link(flow, link, *peer) : Result<void>(peer.error().copy());
  if (connected) {
    health.state = LinkState::trying;
    log_debug("rank {}: trying rail {}, life number {}", flow.peer, rails_[link.rail()]->name(), health.epoch + 1);
    return;
  }
  log_info("rank {}: {}", flow.peer, connected.error().message());
  health.next_try = beat_ + kMostPause;
}

void Engine::tend_attempt(Flow& flow, Link& link) {
  LinkHealth& health = link.health;
  if (health.answers >= kAnswersToRejoin) return rejoin(flow, link);
  const bool overdue = now_ - health.asked_at >= link.deadline(deadline_floor_);
  if (health.asked == 0 || overdue) ask(flow, link);
  if (health.state == LinkState::trying && beat_ - health.since >= attempt_time()) {
    attempt_failed(flow, link);
  }
}

void Engine::attempt_failed(Flow& flow, Link& link) {
  LinkHealth& health = link.health;
  drop_link(link);
  log_debug("rank {}: no success on rail {}{}", flow.peer, rails_[link.rail()]->name(),
            health.refused ? ", nobody is there" : "");
  health.since = beat_;
  // An attempt is cheap: what may grow beyond a second is only the time that a link which came and went must wait. And
  // with nothing left, there is nothing to spare by waiting longer.
  const bool alone = std::ranges::none_of(flow.links, &Link::up);
  const std::int64_t pause = std::min(kFirstBackOff << std::min<std::uint32_t>(health.failures++, 10), kMostPause);
  health.next_try = beat_ + (alone ? kFirstBackOff : pause);
  if (nobody_there(flow)) lose_peer(flow, "its process is gone");
}

void Engine::rejoin(Flow& flow, Link& link) {
  LinkHealth& health = link.health;
  health.state = LinkState::up;
  health.suspect = false;
  health.failures = 0;
  health.since = health.delivered_since = beat_;
  ++counts_.links_rejoined;
  log_warn("link to rank {} on rail {} is back, in its life number {}", flow.peer, rails_[link.rail()]->name(),
           health.epoch + 1);
}

// ---- A peer is gone ----

/// Over every link that leads anywhere the peer's machine has answered that nobody is there.
bool Engine::nobody_there(const Flow& flow) const {
  bool refused = false;
  for (const Link& link : flow.links) {
    const bool blind = rail_states_[link.rail()].down;
    if (link.health.state != LinkState::down || (!blind && !link.health.refused)) return false;
    refused |= !blind;
  }
  return refused;
}

void Engine::lose_peer(Flow& flow, const std::string& why) {
  if (flow.failed.load(std::memory_order_relaxed)) return;
  ++counts_.peers_lost;
  const std::uint64_t outstanding = flow.outstanding.load(std::memory_order_relaxed);
  Error error(Status::peer_lost,
              fmt::format("rank {} is lost: {}; {} operations were under way to it, units {} to {} unacknowledged",
                          flow.peer, why, outstanding, flow.acknowledged, flow.next_sequence),
              {.peer = flow.peer, .operation = "failover", .sequence = flow.acknowledged});
  log_warn("{}", error.message());
  for (Link& link : flow.links) drop_link(link);
  fail_flow(flow, std::move(error));
  last_lost_.store(flow.peer, std::memory_order_release);
  // The others may wait for it without having sent it anything. Each finds out for itself.
  rumours_.push_back(flow.peer);
}

void Engine::check_on(int peer) {
  const auto found = flow(peer);
  if (!found || !failover_ || (*found)->failed.load(std::memory_order_relaxed)) return;
  Flow& flow = **found;
  watch(flow);
  flow.concerned_since = beat_;
  flow.heard_at = beat_ - 1;
  if (!flow.probe.on) start_probe(flow, false);
}

void Engine::use_directly(Flow& flow) {
  if (flow.direct.exchange(true, std::memory_order_relaxed)) return;
  if (!failover_ || flow.acquainted || flow.failed.load(std::memory_order_relaxed)) return;
  strangers_.fetch_add(1, std::memory_order_relaxed);
  watch(flow);
}

/// The peer has answered, or never will.
void Engine::acquainted(Flow& flow) {
  if (std::exchange(flow.acquainted, true)) return;
  // Release: whoever sees that there are no more may leave.
  if (flow.direct.load(std::memory_order_relaxed)) strangers_.fetch_sub(1, std::memory_order_release);
}

void Engine::spread_rumours() {
  for (const int peer : rumours_) {
    const wire::RecordHeader record{wire::RecordKind::lost, 0, 0, 0, static_cast<std::uint64_t>(peer)};
    for (const auto& flow : flow_storage_) {
      if (!flow->failed.load(std::memory_order_relaxed)) send_notice(*flow, record);
    }
  }
  rumours_.clear();
}

}  // namespace railyard::transport
