/// Transmitting: the only place that posts. Data, answers and acknowledgements all leave through here.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

/// A frame with less room than this is full.
constexpr std::size_t kFullMargin = 128;
/// A chunk that was lost so often is not the rails' fault.
constexpr std::uint8_t kMostAttempts = 100;
}  // namespace

[[gnu::hot]] bool Engine::transmit() {
  return scheduler_.take_turns([this](Flow& flow, std::uint32_t most) { return transmit_flow(flow, most); });
}

[[gnu::hot]] std::uint32_t Engine::transmit_flow(Flow& flow, std::uint32_t most) {
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

std::uint32_t Engine::grant(Flow& flow) {
  // Every sender that is heard gets an equal share of the buffers, at least the first grant, at most a window. A grant
  // is never taken back: the limit only rises.
  const std::uint32_t budget = receive_budget_ / std::max(heard_flows_, 1U);
  return flow.receiver.grant(std::clamp(budget, kFirstGrant, window_));
}

[[gnu::hot]] void Engine::write_header(Flow& flow, std::byte* frame, wire::FrameKind kind, std::uint16_t records,
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

[[gnu::hot]] bool Engine::post_frame(Flow& flow, Operation& operation) {
  if (!flow.sender.may_send(window_)) return false;
  memory::Buffer& buffer = *operation.frame;
  const bool full = operation.next != nullptr || buffer.bytes + kFullMargin > wire::kFrameBytes;
  Segment& segment = operation.own;
  segment.tag = static_cast<std::uint8_t>(Tag::segment);
  segment.operation = &operation;
  segment.bytes = buffer.bytes;
  segment.sequence = flow.sender.next_sequence();
  for (Scheduler::Tried tried = 0;;) {
    Link* const link = Scheduler::link_for_frame(flow, full, tried);
    if (link == nullptr) return false;
    const fabric::Post answer = post_segment(flow, segment, *link);
    if (answer == fabric::Post::posted) break;
    if (answer == fabric::Post::failed) {
      post_failed(flow, *link);
      return false;
    }
    tried = Scheduler::with(tried, flow, *link);
  }
  flow.sender.sent(&segment);
  flow.sender.dequeue();
  operation.whole = true;
  operation.segments = operation.unfinished = 1;
  return true;
}

bool Engine::post_chunk(Flow& flow, Operation& operation) {
  if (operation.kind == Operation::Kind::write && !flow.sender.may_send(window_)) return false;
  for (Scheduler::Tried tried = 0;;) {
    Link* link = Scheduler::link_for_chunk(flow, tried, operation.bytes - operation.started, now_);
    if (link == nullptr) return false;
    switch (post_chunk_on(flow, operation, *link)) {
      case fabric::Post::posted:
        Scheduler::chunk_posted(flow, *link);
        return true;
      case fabric::Post::failed:
        post_failed(flow, *link);
        return false;
      case fabric::Post::busy:
        tried = Scheduler::with(tried, flow, *link);
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
  segment->tag = static_cast<std::uint8_t>(Tag::segment);
  segment->operation = &operation;
  segment->offset = operation.started;
  segment->bytes = Scheduler::chunk_bytes(flow, link, operation, now_);
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
  trace_.posted(flow, segment, link);
  const Operation::Kind kind = segment.voided ? Operation::Kind::frame : segment.operation->kind;
  if (kind != Operation::Kind::frame) {
    share.bytes += segment.bytes;
    if (flow.bytes_in_flight == 0) ++flow.route->bulk_flows;
    flow.bytes_in_flight += segment.bytes;
    flow.route->bytes_in_flight += segment.bytes;
    Scheduler::note_chunk(flow);
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
  options.delivery_complete =
      rail.capabilities().delivery_complete &&
      (!ordered || flow.shares.size() > 1 || Scheduler::yields(flow, now_) || segment.faults != 0);
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
  for (Scheduler::Tried tried = 0;;) {
    Link* link = frame   ? Scheduler::link_for_frame(flow, true, tried)
                 : alone ? (tried == 0 ? Scheduler::link_alone(flow, segment) : nullptr)
                         : Scheduler::link_for_chunk(flow, tried, segment.bytes, now_);
    if (link == nullptr) return false;
    segment.again = segment.lost = false;
    const fabric::Post answer = post_segment(flow, segment, *link);
    if (answer == fabric::Post::posted) {
      segment.alone = alone;
      operation.on_trial |= alone;
      ++segment.attempts;
      ++counts_.segments_replayed;
      trace_.event(
          {EngineTrace::Kind::replay, flow.peer, link->rail(), segment.attempts, segment.sequence, segment.bytes});
      return true;
    }
    segment.again = true;
    if (answer == fabric::Post::failed) {
      post_failed(flow, *link);
      return false;
    }
    tried = Scheduler::with(tried, flow, *link);
  }
}

void Engine::post_failed(Flow& flow, Link& link) {
  const std::string why = rails_[link.rail()]->failure();
  fail_link(*flow.route, link, LossCause::broken, why);
}

[[gnu::hot]] bool Engine::report(bool idle) {
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
  for (Scheduler::Tried tried = 0;;) {
    Link* link = Scheduler::link_for_report(flow, tried);
    memory::Buffer* buffer = link != nullptr ? reports_->take() : nullptr;
    if (buffer == nullptr) return false;
    buffer->bytes = wire::kRecordsAt;
    write_header(flow, buffer->data, wire::FrameKind::acknowledge, 0, 0, buffer->bytes);
    if (post_report(flow, *link, buffer)) break;
    tried = Scheduler::with(tried, flow, *link);
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
