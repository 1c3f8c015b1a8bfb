/// The transmit scheduler: the only place that posts. Data, answers and acknowledgements all leave through here.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

/// Frames in flight on a link before the next one waits for company: an idle link sends at once, a busy one fills
/// frames.
constexpr std::uint32_t kEagerFrames = 2;
/// Full frames in flight on a link.
constexpr std::uint32_t kMostFrames = 64;
/// A frame with less room than this is full.
constexpr std::size_t kFullMargin = 128;
/// Acknowledgements in flight on a link: one that swallows them must not take them all.
constexpr std::uint32_t kMostReports = 8;
/// More than any load: a suspected link is the last choice.
constexpr double kSuspectLoad = 1e9;
/// A chunk that was lost so often is not the rails' fault.
constexpr std::uint8_t kMostAttempts = 100;
/// Beside a latency-sensitive flow one chunk of this size is in flight on a route: whatever a rail copies while it is
/// polled, the latency-sensitive flow waits for.
constexpr std::uint32_t kBesideLatencyFlow = 24 * 1024;
/// A flow with so many small messages and no chunk between them is latency-sensitive.
constexpr std::uint32_t kLatencyFlowMessages = 16;
/// So long after it spoke the way is kept free for it.
constexpr std::int64_t kLatencyFlowNanoseconds = 5'000'000;

}  // namespace

bool Engine::transmit() {
  // Each flow in turn, a quarter of the batch each, until the batch is used up: no flow starves another.
  const std::uint32_t share = std::max(settings_.batch / 4, 1U);
  std::uint32_t left = settings_.batch;
  std::size_t turns = std::min<std::size_t>(active_.size(), settings_.batch);
  bool moved = false;
  std::size_t kept = 0;
  std::size_t seen = 0;
  for (; seen < active_.size() && turns > 0 && left > 0; ++seen, --turns) {
    Flow& flow = *active_[seen];
    const std::uint32_t posted = transmit_flow(flow, std::min(share, left));
    left -= std::min(posted, left);
    moved |= posted > 0;
    if (!flow.sender.has_work() && flow.receiver.replies.empty()) {
      flow.in_active = false;
    } else {
      active_[kept++] = &flow;
    }
  }
  // Flows that had their turn go behind those that had none.
  const auto first = active_.begin() + static_cast<std::ptrdiff_t>(kept);
  const auto unseen = active_.begin() + static_cast<std::ptrdiff_t>(seen);
  active_.erase(first, unseen);
  std::rotate(active_.begin(), active_.begin() + static_cast<std::ptrdiff_t>(kept), active_.end());
  return moved;
}

std::uint32_t Engine::transmit_flow(Flow& flow, std::uint32_t most) {
  if (flow.sender.corked) return 0;
  if (!flow.receiver.replies.empty()) queue_replies(flow);
  std::uint32_t posted = flow.sender.replay().empty() ? 0 : replay(flow, most);
  while (posted < most && flow.sender.has_queued() && start_operation(flow, *flow.sender.head())) ++posted;
  return posted;
}

bool Engine::start_operation(Flow& flow, Operation& operation) {
  if (!flow.sender.may_begin(operation)) return false;
  if (operation.kind == Operation::Kind::frame) return post_frame(flow, operation);
  if (operation.failure != FailureCause::none) return post_void(flow, operation);
  if (operation.doubted && !operation.cleared && operation.unfinished != 0) return false;
  if (!flow.sender.may_land()) return false;
  return operation.kind == Operation::Kind::atomic ? post_atomic(flow, operation) : post_chunk(flow, operation);
}

void Engine::queue_replies(Flow& flow) {
  Operation* frame = flow.sender.head();
  std::vector<Reply>& replies = flow.receiver.replies;
  // A frame at the head that has not left yet takes the answers along.
  std::size_t done = 0;
  while (done < replies.size()) {
    const std::size_t bytes = wire::record_bytes(sizeof(std::uint64_t));
    if (frame == nullptr || frame->kind != Operation::Kind::frame || frame->fenced ||
        frame->frame->bytes + bytes > wire::kFrameBytes) {
      memory::Buffer* buffer = frames_->take();
      Operation* fresh = buffer != nullptr ? operations_.take() : nullptr;
      if (fresh == nullptr) {
        if (buffer != nullptr) frames_->give(buffer);
        break;
      }
      fresh->flow = &flow;
      fresh->frame = buffer;
      buffer->bytes = wire::kRecordsAt;
      flow.sender.enqueue_first(fresh);
      ++flow.sender.frames;
      frame = fresh;
    }
    const Reply& reply = replies[done++];
    std::byte* body =
        wire::FrameWriter::append(frame->frame->data, frame->frame->bytes,
                                  {wire::RecordKind::reply, reply.status, sizeof reply.value, reply.request, 0});
    std::memcpy(body, &reply.value, sizeof reply.value);
    ++frame->records;
  }
  replies.erase(replies.begin(), replies.begin() + static_cast<std::ptrdiff_t>(done));
}

/// The least loaded link that has room and was not tried yet; among equals the first from `first` on. What is lost with
/// a link waits for a fence: while there is a link that nobody suspects, new segments wait for that one.
template <typename HasRoom>
Link* Engine::choose(Flow& flow, std::size_t first, Tried tried, bool suspects, HasRoom&& has_room) {
  Link* best = nullptr;
  double best_load = 0;
  std::vector<Link>& links = flow.route->links;
  const std::size_t count = links.size();
  bool trusted = false;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = (first + i) % count;
    Link& link = links[index];
    trusted |= link.up() && !link.suspect();
    if ((tried >> index & 1U) != 0 || !link.up() || !has_room(link, flow.shares[index])) continue;
    const double load = count == 1 ? 0 : link.load() + (link.suspect() ? kSuspectLoad : 0);
    if (best == nullptr || load < best_load) {
      best = &link;
      best_load = load;
    }
  }
  return best != nullptr && best->suspect() && trusted && !suspects ? nullptr : best;
}

Link* Engine::choose_for_frame(Flow& flow, bool full, Tried tried, bool suspects) {
  // A frame waits for company of its own flow only.
  const std::uint32_t most = full ? kMostFrames : kEagerFrames;
  return choose(flow, flow.first_link, tried, suspects, [most](const Link& link, const Share& share) {
    return share.frames < most && link.frames_in_flight() < kMostFrames;
  });
}

void Engine::note_small(Flow& flow) const {
  if (++flow.lone_messages < kLatencyFlowMessages) return;
  flow.route->latency_flow = &flow;
  flow.route->latency_flow_at = now_;
}

void Engine::note_chunk(Flow& flow) const {
  flow.lone_messages = 0;
  if (flow.route->latency_flow == &flow) flow.route->latency_flow = nullptr;
}

bool Engine::beside_latency_flow(const Flow& flow) const {
  const Route& route = *flow.route;
  return route.latency_flow != nullptr && route.latency_flow != &flow && route.moved_by_us &&
         now_ - route.latency_flow_at < kLatencyFlowNanoseconds;
}

/// The link for the next chunk. Flows that share a link have equal parts of what may be in flight on it; one that has
/// nothing there yet need not wait for the others.
Link* Engine::choose_for_chunk(Flow& flow, Tried tried) const {
  if (flow.route->bytes_in_flight != 0 && beside_latency_flow(flow)) return nullptr;
  const std::uint64_t flows = std::max(flow.route->bulk_flows, 1U);
  return choose(flow, flow.first_chunk, tried, false, [flows](const Link& link, const Share& share) {
    return link.sole == nullptr && (share.bytes == 0 || (link.has_room() && share.bytes < link.window() / flows));
  });
}

std::uint32_t Engine::grant(Flow& flow) {
  // Every sender that is heard gets an equal share of the buffers, at least the first grant, at most a window. A grant
  // is never taken back: the limit only rises.
  const std::uint32_t budget = receive_budget_ / std::max(heard_flows_, 1U);
  return flow.receiver.grant(std::clamp(budget, kFirstGrant, window_));
}

void Engine::write_header(Flow& flow, std::byte* frame, wire::FrameKind kind, std::uint16_t records,
                          std::uint32_t sequence, std::uint32_t bytes) {
  wire::FrameHeader header;
  header.kind = kind;
  header.flow = flow.remote_id;
  header.records = records;
  header.session = flow.session_out;
  header.sequence = sequence;
  header.acknowledged = flow.receiver.acknowledged();
  header.limit = grant(flow);
  header.bytes = bytes;
  std::memcpy(frame, &header, sizeof header);
}

bool Engine::post_frame(Flow& flow, Operation& operation) {
  if (!flow.sender.may_send(window_)) return false;
  memory::Buffer& buffer = *operation.frame;
  const bool full = operation.next != nullptr || buffer.bytes + kFullMargin > wire::kFrameBytes;
  Segment* segment = nullptr;
  Link* link = nullptr;
  for (Tried tried = 0; segment == nullptr; tried |= Tried{1} << flow.route->index_of(*link)) {
    link = choose_for_frame(flow, full, tried);
    segment = link != nullptr ? segments_.take() : nullptr;
    if (segment == nullptr) return false;
    segment->tag = static_cast<std::uint8_t>(Tag::segment);
    segment->operation = &operation;
    segment->bytes = buffer.bytes;
    segment->sequence = flow.sender.next_sequence();
    const fabric::Post answer = post_segment(flow, *segment, *link);
    if (answer == fabric::Post::posted) break;
    segments_.give(std::exchange(segment, nullptr));
    if (answer == fabric::Post::failed) {
      post_failed(flow, *link);
      return false;
    }
  }
  flow.sender.sent(segment);
  flow.sender.dequeue();
  operation.whole = true;
  operation.segments = operation.unfinished = 1;
  return true;
}

bool Engine::post_chunk(Flow& flow, Operation& operation) {
  if (operation.kind == Operation::Kind::write && !flow.sender.may_send(window_)) return false;
  for (Tried tried = 0;;) {
    Link* link = choose_for_chunk(flow, tried);
    if (link == nullptr) return false;
    switch (post_chunk_on(flow, operation, *link)) {
      case fabric::Post::posted:
        flow.first_chunk = (flow.route->index_of(*link) + 1U) % static_cast<std::uint32_t>(flow.shares.size());
        return true;
      case fabric::Post::failed:
        post_failed(flow, *link);
        return false;
      case fabric::Post::busy:
        tried |= Tried{1} << flow.route->index_of(*link);
    }
  }
}

/// NICs are not atomic against each other: the target's first rail that can does it, for everybody.
bool Engine::post_atomic(Flow& flow, Operation& operation) {
  Link* chosen = nullptr;
  for (Link& link : flow.route->links) {
    if (!rails_[link.rail()]->capabilities().native_atomics) continue;
    if (chosen == nullptr || link.remote_rail() < chosen->remote_rail()) chosen = &link;
  }
  if (chosen != nullptr && chosen->up()) {
    const fabric::Post answer = post_chunk_on(flow, operation, *chosen);
    if (answer == fabric::Post::failed) post_failed(flow, *chosen);
    return answer == fabric::Post::posted;
  }
  give_up_atomic(operation, FailureCause::rail_failed);
  flow.sender.dequeue();
  operation.whole = true;
  release_operation(&operation);
  return true;
}

fabric::Post Engine::post_chunk_on(Flow& flow, Operation& operation, Link& link) {
  Segment* segment = segments_.take();
  if (segment == nullptr) return fabric::Post::busy;
  const std::uint64_t left = operation.bytes - operation.started;
  // A remainder shorter than half a chunk rides along rather than on its own.
  const std::uint32_t chunk = beside_latency_flow(flow) ? std::min(link.chunk(), kBesideLatencyFlow) : link.chunk();
  const bool last = left <= chunk + chunk / 2 && left <= flow.route->max_write;
  segment->tag = static_cast<std::uint8_t>(Tag::segment);
  segment->operation = &operation;
  segment->offset = operation.started;
  segment->bytes = static_cast<std::uint32_t>(last ? left : std::min<std::uint64_t>(left, chunk));
  segment->sequence = flow.sender.next_sequence();
  const fabric::Post answer = post_segment(flow, *segment, link);
  if (answer != fabric::Post::posted) {
    segments_.give(segment);
    return answer;
  }
  ++operation.segments;
  ++operation.unfinished;
  operation.started += segment->bytes;
  if (operation.kind == Operation::Kind::write) {
    flow.sender.sent(segment);
  } else if (segment->offset == 0) {
    flow.sender.began_unordered();
  }
  if (operation.started == operation.bytes) {
    operation.whole = true;
    flow.sender.dequeue();
  }
  return answer;
}

/// Hands the segment to the link's rail and counts it there: the first time and every later one.
fabric::Post Engine::post_segment(Flow& flow, Segment& segment, Link& link) {
  const fabric::Post answer = hand_over(flow, segment, link);
  if (answer != fabric::Post::posted) return answer;
  segment.link = flow.route->index_of(link);
  Share& share = flow.shares[segment.link];
  segment.epoch = link.health.epoch;
  segment.posted = true;
  ++flow.posted;
  segment.in_flight = true;
  link.health.taken();
  const Operation::Kind kind = segment.voided ? Operation::Kind::frame : segment.operation->kind;
  if (kind != Operation::Kind::frame) {
    share.bytes += segment.bytes;
    if (flow.bytes_in_flight == 0) ++flow.route->bulk_flows;
    flow.bytes_in_flight += segment.bytes;
    flow.route->bytes_in_flight += segment.bytes;
    note_chunk(flow);
  }
  RailStatistics& statistics = rail_states_[link.rail()].statistics;
  switch (kind) {
    case Operation::Kind::frame:
      link.frame_posted();
      ++share.frames;
      flow.receiver.reported();
      ++statistics.frames_sent;
      statistics.bytes_sent += segment.bytes;
      break;
    case Operation::Kind::read:
    case Operation::Kind::atomic:
      segment.stamp = link.chunk_posted(segment.bytes, clock_->now());
      ++statistics.reads_sent;
      break;
    case Operation::Kind::write:
    case Operation::Kind::relaxed_write:
      segment.stamp = link.chunk_posted(segment.bytes, clock_->now());
      ++statistics.writes_sent;
      statistics.bytes_sent += segment.bytes;
      break;
  }
  return answer;
}

fabric::Post Engine::hand_over(Flow& flow, Segment& segment, Link& link) {
  const Operation& operation = *segment.operation;
  fabric::Rail& rail = *rails_[link.rail()];
  if (operation.kind == Operation::Kind::frame) {
    const memory::Buffer& buffer = *operation.frame;
    write_header(flow, buffer.data, wire::FrameKind::sequenced, operation.records, segment.sequence, buffer.bytes);
    return rail.send(link.remote(), buffer.chunk(link.rail()), &segment);
  }
  if (segment.voided) {
    const memory::Buffer& buffer = *segment.void_frame;
    write_header(flow, buffer.data, wire::FrameKind::sequenced, 1, segment.sequence, buffer.bytes);
    return rail.send(link.remote(), buffer.chunk(link.rail()), &segment);
  }
  const RemoteKey& key = operation.remote.keys[link.remote_rail()];
  const fabric::RemoteChunk remote{link.remote(), key.base + operation.remote_offset + segment.offset, key.key};
  if (operation.kind == Operation::Kind::atomic) {
    fabric::LocalChunk result = operation.frame->chunk(link.rail());
    result.bytes = segment.bytes;
    return rail.atomic(remote, operation.request, result, &segment);
  }
  fabric::LocalChunk local{operation.local + segment.offset, segment.bytes, nullptr};
  if (operation.region != nullptr) {
    local.descriptor = operation.region->on(link.rail()).descriptor[static_cast<std::size_t>(fabric::Lane::data)];
  }
  if (operation.kind == Operation::Kind::read) return rail.read(remote, local, &segment);
  const bool ordered = operation.kind == Operation::Kind::write;
  fabric::WriteOptions options;
  options.with_immediate = ordered;
  options.immediate = wire::Immediate{wire::Immediate::kChunk, flow.remote_id, segment.sequence}.pack();
  // Balancing needs to know when bytes arrived, not when the sender's host has swallowed them; so does whoever keeps
  // the way free for a latency-sensitive flow.
  options.delivery_complete = rail.capabilities().delivery_complete &&
                              (!ordered || flow.shares.size() > 1 || beside_latency_flow(flow) || segment.faults != 0);
  return rail.write(remote, local, options, &segment);
}

/// Posts again what a dead link has lost. It was granted when it first went out.
std::uint32_t Engine::replay(Flow& flow, std::uint32_t most) {
  std::vector<Segment*>& waiting = flow.sender.replay();
  std::uint32_t posted = 0;
  std::size_t kept = 0;
  bool full = false;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    Segment* const segment = waiting[i];
    const bool patient = segment->faults != 0;  // one that waits to be alone on a link keeps nobody else
    if (!full && posted < most && replay_segment(flow, *segment)) {
      ++posted;
      continue;
    }
    if (flow.failed.load(std::memory_order_relaxed)) return posted;  // nothing is left of the list
    full |= !patient;
    waiting[kept++] = segment;
  }
  waiting.resize(kept);
  if (!waiting.empty() && waiting.front()->attempts >= kMostAttempts) {
    const Segment& segment = *waiting.front();
    fail_flow(flow, Error(Status::rail_failed,
                          fmt::format("a chunk of {} bytes for {} was lost {} times over: giving up", segment.bytes,
                                      flow.route->who, segment.attempts),
                          {flow.peer, flow.route->links[segment.link].rail(), "replay", segment.sequence}));
  }
  return posted;
}

bool Engine::replay_segment(Flow& flow, Segment& segment) {
  if (segment.attempts >= kMostAttempts) return false;
  Operation& operation = *segment.operation;
  if (operation.withdrawn) fail_operation(operation, FailureCause::deregistered, segment.sequence);
  if (operation.failure != FailureCause::none) {
    if (!operation.sequenced()) {
      finish_segment(&segment);
      release_segment(&segment);
      return true;
    }
    if (!make_void(segment)) return false;
  }
  const bool frame = operation.kind == Operation::Kind::frame || segment.voided;
  const bool alone = !frame && segment.faults != 0;
  for (Tried tried = 0;;) {
    Link* link = frame ? choose_for_frame(flow, true, tried) : choose_for_chunk(flow, tried);
    if (alone) link = tried == 0 ? isolate(flow, segment) : nullptr;
    if (link == nullptr) return false;
    segment.again = segment.lost = false;
    const fabric::Post answer = post_segment(flow, segment, *link);
    if (answer == fabric::Post::posted) {
      segment.alone = alone;
      operation.on_trial |= alone;
      ++segment.attempts;
      ++counts_.segments_replayed;
      return true;
    }
    segment.again = true;
    if (answer == fabric::Post::failed) {
      post_failed(flow, *link);
      return false;
    }
    tried |= Tried{1} << flow.route->index_of(*link);
  }
}

void Engine::post_failed(Flow& flow, Link& link) {
  const std::string why = rails_[link.rail()]->failure();
  fail_link(*flow.route, link, LossCause::broken, why);
}

bool Engine::report(bool idle) {
  bool moved = false;
  std::size_t kept = 0;
  const std::size_t turns = std::min<std::size_t>(reporting_.size(), settings_.batch);
  for (std::size_t i = 0; i < turns; ++i) {
    Flow& flow = *reporting_[i];
    if (flow.receiver.owes_report() && (idle || flow.receiver.report_due())) moved |= post_acknowledgement(flow);
    if (!flow.receiver.owes_report() || flow.failed.load(std::memory_order_relaxed)) {
      flow.in_reporting = false;
    } else {
      reporting_[kept++] = &flow;
    }
  }
  reporting_.erase(reporting_.begin() + static_cast<std::ptrdiff_t>(kept),
                   reporting_.begin() + static_cast<std::ptrdiff_t>(turns));
  std::rotate(reporting_.begin(), reporting_.begin() + static_cast<std::ptrdiff_t>(kept), reporting_.end());
  return moved;
}

bool Engine::post_acknowledgement(Flow& flow) {
  const auto has_room = [](const Link& each, const Share&) { return each.reports_in_flight() < kMostReports; };
  for (Tried tried = 0;;) {
    Link* link = choose(flow, flow.first_link, tried, true, has_room);
    memory::Buffer* buffer = link != nullptr ? reports_->take() : nullptr;
    if (buffer == nullptr) return false;
    buffer->bytes = wire::kRecordsAt;
    write_header(flow, buffer->data, wire::FrameKind::acknowledge, 0, 0, buffer->bytes);
    if (post_report(flow, *link, buffer)) break;
    tried |= Tried{1} << flow.route->index_of(*link);
  }
  ++counts_.acknowledgements_sent;
  return true;
}

/// Sends a message outside the sequence, whose header tells the peer all. Takes the buffer in any case.
bool Engine::post_report(Flow& flow, Link& link, memory::Buffer* buffer) {
  buffer->tag = static_cast<std::uint8_t>(Tag::report);
  buffer->owner = &link;
  const fabric::Post answer = rails_[link.rail()]->send(link.remote(), buffer->chunk(link.rail()), buffer);
  if (answer != fabric::Post::posted) {
    reports_->give(buffer);
    if (answer == fabric::Post::failed) post_failed(flow, link);
    return false;
  }
  link.report_posted();
  link.health.taken();
  flow.receiver.reported();
  return true;
}

}  // namespace railyard::transport
