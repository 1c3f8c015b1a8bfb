/// Notices: what two engines tell each other about the links between them. Outside the sequence: any of them may be
/// lost or come twice, so each is asked for again until it is answered.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

/// Pings that wait for their answer; a peer that asks more often is not answered more often.
constexpr std::size_t kMostPongs = 64;
/// A rail that always has more does not keep a thorough answer for longer than so many polls.
constexpr std::uint64_t kMostPollsToAnswer = 16;
/// Notices in flight on a link: one that swallows them must not take the buffers of all others.
constexpr std::uint32_t kMostNotices = 8;
/// How long a process that leaves waits until its peers have heard it, and for how many passes.
constexpr std::int64_t kMostLeave = 500'000'000;
constexpr int kMostLeavePasses = 2000;

}  // namespace

wire::LinkEnds Engine::ends_of(const Route& route, const Link& link) {
  return {route.index_of(link), link.rail(), link.remote_rail()};
}

/// A flow that speaks for its route: any that the peer knows will do. Null: none is left.
Flow* Engine::control_flow(const Route& route) {
  Flow* found = nullptr;
  for (Flow* flow : route.flows) {
    if (flow->failed.load(std::memory_order_relaxed)) continue;
    found = flow;
    if (!flow->parting) break;  // one that the peer may have dropped speaks only where there is no other
  }
  return found;
}

bool Engine::send_notice(Flow& flow, Link& link, const wire::RecordHeader& record, std::span<const std::byte> body) {
  memory::Buffer* buffer = link.reports_in_flight() < kMostNotices ? reports_->take() : nullptr;
  if (buffer == nullptr) return false;
  buffer->bytes = wire::kRecordsAt;
  std::byte* body_at = wire::FrameWriter::append(buffer->data, buffer->bytes, record);
  if (!body.empty()) std::memcpy(body_at, body.data(), body.size());
  write_header(flow, buffer->data, wire::FrameKind::notice, 1, flow.sender.next_sequence(), buffer->bytes);
  return post_report(flow, link, buffer);
}

/// Over the best link that takes it.
bool Engine::send_notice(Flow& flow, const wire::RecordHeader& record, std::span<const std::byte> body) {
  for (Scheduler::Tried tried = 0;;) {
    Link* link = Scheduler::link_for_notice(flow, tried);
    if (link == nullptr) return false;
    if (send_notice(flow, *link, record, body)) return true;
    tried = Scheduler::with(tried, flow, *link);
  }
}

void Engine::on_notice(Flow& flow, const memory::Buffer& buffer) {
  const std::span<const std::byte> bytes{buffer.data, buffer.bytes};
  const auto header = wire::parse_header(bytes);
  wire::RecordReader reader(bytes, *header);
  const auto record = reader.next();
  if (!record) {
    ++counts_.dropped_malformed;
    return;
  }
  const auto ends = wire::LinkEnds::unpack(record->header.offset);
  Route& route = *flow.route;
  switch (record->header.kind) {
    case wire::RecordKind::ping:
      if (route.pongs.empty()) route.pongs_since = beat_;
      if (route.pongs.size() < kMostPongs) {
        const bool thorough = (record->header.detail & wire::kPingThorough) != 0;
        route.pongs.push_back({record->header.exposed_region, record->header.offset, thorough, polls_});
      }
      note_for(route);
      if (failover_) open_way_back(route, ends);
      // Whoever asks has waited in vain: our own links to it may be the reason.
      if ((record->header.detail & wire::kPingInReply) == 0 && !route.probe.on && failover_) start_probe(route, true);
      return;
    case wire::RecordKind::pong:
      return on_pong(route, ends, record->header.exposed_region);
    case wire::RecordKind::fence:
      return on_fence(flow, ends, record->header.exposed_region, static_cast<LossCause>(record->header.detail));
    case wire::RecordKind::fenced:
      return on_fenced(flow, ends, record->header.exposed_region, record->body);
    case wire::RecordKind::refused:
      return on_refused(flow, record->body);
    case wire::RecordKind::confirmed:
      return on_confirmed(flow, record->header.offset);
    case wire::RecordKind::leave:
      if (record->header.detail == 0) return take_leave(flow, header->sequence);
      route.leave_heard = true;
      return;
    case wire::RecordKind::lost:
      if (record->header.offset >= static_cast<std::uint64_t>(size_)) {
        ++counts_.dropped_malformed;
      } else if (static_cast<int>(record->header.offset) != rank_) {
        check_on(static_cast<int>(record->header.offset));
      }
      return;
    default:
      ++counts_.dropped_malformed;
  }
}

void Engine::take_leave(Flow& flow, std::uint32_t sequence) {
  flow.leaving = flow.route->leaving = true;
  flow.leave_sequence = sequence;
  note_for(*flow.route);
}

/// Whether the peer's goodbye is dealt with: what it sent before has been taken in, and it has been told so.
bool Engine::answer_leave(Route& route) {
  const auto late = std::ranges::find_if(route.flows, [](const Flow* flow) {
    return !flow->failed.load(std::memory_order_relaxed) && flow->leaving &&
           static_cast<std::int32_t>(flow->leave_sequence - flow->receiver.next()) > 0;
  });
  if (late != route.flows.end()) return false;
  send_notice(*control_flow(route), {wire::RecordKind::leave, 1, 0, 0, 0});
  part_from(route);
  return true;
}

/// A ping that cannot be answered, for want of a link, proves a path at least: it is tried at once, whatever the
/// back-off. Two sides that waited each for its own time might never be there together.
void Engine::open_way_back(Route& route, wire::LinkEnds ends) {
  if (std::ranges::any_of(route.links, [](const Link& link) { return link.health.state != LinkState::down; })) return;
  for (Link& link : route.links) {
    if (link.rail() == ends.remote_rail && link.remote_rail() == ends.rail) link.health.next_try = beat_;
  }
  watch(route);
}

void Engine::note_for(Route& route) {
  if (route.in_noticing) return;
  watch(route);
  route.in_noticing = true;
  noticing_.push_back(&route);
  has_chores_ = true;
}

/// Answers pings, each over every link that may be heard: also over those that wait for an answer themselves, or two
/// sides that have only such links would wait for each other.
bool Engine::answer_notices() {
  bool moved = false;
  std::erase_if(noticing_, [&](Route* route) {
    const bool over = control_flow(*route) == nullptr || route->over || route->loss.on;
    if (over) route->pongs.clear();
    bool refused = false;
    moved |= std::erase_if(route->pongs, [&](const Pong& pong) {
               if (!may_answer(pong)) return false;
               const bool sent = send_pong(*route, pong);
               refused |= !sent;
               return sent;
             }) > 0;
    if (!refused) route->pongs_since = beat_;
    const bool leaves = !over && route->leaving && !answer_leave(*route);
    route->in_noticing = !route->pongs.empty() || leaves;
    return !route->in_noticing;
  });
  return moved;
}

/// A thorough one says that the peer's other links have been read: whatever they had brought has been answered with it.
bool Engine::may_answer(const Pong& pong) const {
  if (!pong.thorough || polls_ - pong.came_with >= kMostPollsToAnswer) return true;
  return std::ranges::all_of(rail_states_, [&](const RailState& rail) { return rail.emptied > pong.came_with; });
}

bool Engine::send_pong(Route& route, const Pong& pong) {
  Flow& flow = *control_flow(route);
  bool sent = false;
  for (Link& link : route.links) {
    if (link.health.state != LinkState::down)
      sent |= send_notice(flow, link, {wire::RecordKind::pong, 0, 0, pong.round, pong.ends});
  }
  return sent;
}

void Engine::on_pong(Route& route, wire::LinkEnds ends, std::uint32_t round) {
  if (ends.link >= route.links.size() || round > route.rounds) {
    ++counts_.dropped_malformed;
    return;
  }
  finish_handshake(route);
  Link& link = route.links[ends.link];
  LinkHealth& health = link.health;
  if (round <= health.answered) return;  // the same answer over another link
  health.answered = round;
  health.answered_at = beat_;
  health.vouched_since = 0;
  if (round == health.asked) link.note_trip(now_ - health.asked_at);
  if (health.state == LinkState::trying && round > health.epoch_began) {
    ++health.answers;
    health.since = beat_;  // patience starts anew with every answer
    if (round == health.asked) health.asked = 0;
  }
  if (!link.up()) return;
  health.on(LinkEvent::answered);
  Probe& probe = route.probe;
  if (!probe.on || round < probe.first_round) return;
  if (probe.first_answer == 0) probe.first_answer = beat_;
  if (probe.confirmed == 0 && probe.second_round != 0 && round >= probe.second_round) probe.confirmed = beat_;
}

void Engine::on_fence(Flow& flow, wire::LinkEnds ends, std::uint32_t epoch, LossCause cause) {
  if (ends.remote_rail >= rails_.size()) {
    ++counts_.dropped_malformed;
    return;
  }
  FenceRequest* request = nullptr;
  for (FenceRequest& known : fence_requests_) {
    if (known.flow == &flow && known.ends.link == ends.link) request = &known;
  }
  if (request == nullptr) {
    request = &fence_requests_.emplace_back();
    has_chores_ = true;
    request->flow = &flow;
  }
  if (request->epoch != epoch || request->not_before == 0) {
    const auto& capabilities = rails_[ends.remote_rail]->capabilities();
    // The sender disconnected before it asked: what it had under way is at most this old when the time is up.
    const bool timed = capabilities.fencing == fabric::Fencing::timed;
    request->not_before = beat_ + (timed ? capabilities.packet_lifetime : 0);
  }
  request->ends = ends;
  request->epoch = epoch;
  if (!failover_) return;
  Route& route = *flow.route;
  watch(route);  // until it is answered: without a link, one must be made
  // The way back leads over the same two rails.
  for (Link& link : route.links) {
    if (link.rail() != ends.remote_rail || link.remote_rail() != ends.rail) continue;
    if (cause == LossCause::local_down) {
      fail_link(route, link, LossCause::remote_down, "");
    } else if (link.up()) {
      suspect(route, link);
    }
  }
}

bool Engine::answer_fences() {
  const std::size_t before = fence_requests_.size();
  std::erase_if(fence_requests_, [this](const FenceRequest& request) { return answer_fence(request); });
  return fence_requests_.size() != before;
}

/// Whether the request is dealt with. The report is taken after the fence: what it lacks will never arrive.
bool Engine::answer_fence(const FenceRequest& request) {
  Flow& flow = *request.flow;
  if (flow.failed.load(std::memory_order_relaxed)) return true;
  const fabric::LinkName id = RouteName::of_link(flow.route->name.in, request.ends.link);
  if (!rails_[request.ends.remote_rail]->fence({id, request.epoch}) || beat_ < request.not_before) return false;

  struct {
    wire::FencedBody report;
    std::array<std::uint64_t, wire::kMaxWindow / 64U> words{};
  } body;
  body.report = {flow.receiver.next(), flow.receiver.arrived_ahead(body.words)};
  const std::size_t bytes = sizeof body.report + body.report.words * sizeof(std::uint64_t);
  const bool told = send_notice(
      flow, {wire::RecordKind::fenced, 0, static_cast<std::uint16_t>(bytes), request.epoch, request.ends.pack()},
      std::as_bytes(std::span(&body, 1)).first(bytes));
  if (told) trace_.event({EngineTrace::Kind::fence, flow.peer, request.ends.remote_rail, 0, body.report.next});
  return told;
}

void Engine::on_fenced(Flow& flow, wire::LinkEnds ends, std::uint32_t epoch, std::span<const std::byte> body) {
  wire::FencedBody report;
  if (ends.link >= flow.shares.size() || body.size() < sizeof report) {
    ++counts_.dropped_malformed;
    return;
  }
  std::memcpy(&report, body.data(), sizeof report);
  const auto bits = body.subspan(sizeof report);
  if (report.words > wire::kMaxWindow / 64U || bits.size() != report.words * sizeof(std::uint64_t)) {
    ++counts_.dropped_malformed;
    return;
  }
  const Share& share = flow.shares[ends.link];
  if (!share.unfenced || share.dead_epoch != epoch) return;  // an answer that came twice, or too late
  release_fenced(flow, flow.route->links[ends.link], report, bits);
}

void Engine::say_goodbye() {
  if (!failover_) return;
  // Whose memory was used past us may not be connected yet: it could not hear it.
  const std::int64_t until = clock_->now() + kHandshakeWait;
  while (pending_handshakes() != 0 && clock_->now() < until) {
    if (!progress()) clock_->idle();
  }
  // Said over every link, and again until it is heard: a peer that misses it would take us for lost. Some do not listen
  // now; nobody waits for them for long.
  const auto met = [](const Flow* flow) { return flow->sender.acknowledged() != 0 || flow->receiver.next() != 0; };
  const auto deaf = [&met](const std::unique_ptr<Route>& route) {
    return (route->handshake_done || std::ranges::any_of(route->flows, met)) && !route->leave_heard && !route->over &&
           !route->loss.on && control_flow(*route) != nullptr && std::ranges::any_of(route->links, &Link::up);
  };
  const auto say = [this](const auto& wanted) {
    for (const auto& flow : flow_storage_) {
      if (flow->failed.load(std::memory_order_relaxed) || !wanted(*flow->route)) continue;
      for (Link& link : flow->route->links) {
        if (link.up()) send_notice(*flow, link, {wire::RecordKind::leave, 0, 0, 0, 0});
      }
    }
  };
  say([](const Route& route) { return !route.over && !route.loss.on; });
  if (size_ == 0) return;  // channels have taken leave one by one
  const std::int64_t end = clock_->now() + kMostLeave;
  std::int64_t said = clock_->now();
  for (int pass = 0; pass < kMostLeavePasses && std::ranges::any_of(registry_.routes(), deaf); ++pass) {
    if (clock_->now() >= end) return;
    if (!progress()) clock_->idle();
    if (clock_->now() - said < deadline_floor_) continue;
    said = clock_->now();
    say([](const Route& route) { return !route.leave_heard && !route.over && !route.loss.on; });
  }
}

}  // namespace railyard::transport
