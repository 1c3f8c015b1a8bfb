#include "transport/poster.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "transport/scheduler.hpp"

namespace railyard::transport {

fabric::Post Poster::post(Flow& flow, Segment& segment, Link& link) {
  const Operation& operation = *segment.operation;
  const std::uint16_t index = flow.route->index_of(link);
  if (operation.kind == Operation::Kind::frame)
    return post_frame(flow, segment, *operation.frame, operation.records, link, index);
  if (segment.voided) return post_frame(flow, segment, *segment.void_frame, 1, link, index);
  return post_chunk(flow, segment, link);
}

fabric::Post Poster::post_chunk(Flow& flow, Segment& segment, Link& link) {
  const fabric::Post answer = hand_over(flow, segment, link);
  if (answer != fabric::Post::posted) {
    if (answer == fabric::Post::failed) note_failed(flow, link);
    return answer;
  }
  posted(flow, segment, link, flow.route->index_of(link));
  flow.shares[segment.link].bytes += segment.bytes;
  if (flow.bytes_in_flight == 0) ++flow.route->bulk_flows;
  flow.bytes_in_flight += segment.bytes;
  flow.route->bytes_in_flight += segment.bytes;
  Scheduler::note_chunk(flow);
  segment.stamp = link.chunk_posted(segment.bytes, core_.clock->now());
  RailStatistics& statistics = core_.rails.state(link.rail()).statistics;
  const Operation::Kind kind = segment.operation->kind;
  if (kind == Operation::Kind::read || kind == Operation::Kind::atomic) {
    ++statistics.reads_sent;
  } else {
    ++statistics.writes_sent;
    statistics.bytes_sent += segment.bytes;
  }
  return answer;
}

/// Hands a chunk to the link's rail.
fabric::Post Poster::hand_over(Flow& flow, Segment& segment, const Link& link) {
  const Operation& operation = *segment.operation;
  fabric::Rail& rail = core_.rails[link.rail()];
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
      (!ordered || flow.shares.size() > 1 || Scheduler::yields(flow, core_.now) || segment.faults != 0);
  return rail.write(remote, local, options, &segment);
}

fabric::Post Poster::post_report(const Flow& flow, Link& link, memory::Buffer& buffer) {
  RailState& rail = core_.rails.state(link.rail());
  const fabric::Post answer = rail.rail->send(link.remote(), buffer.chunk(link.rail()), &buffer);
  if (answer == fabric::Post::failed) note_failed(flow, link);
  if (answer != fabric::Post::posted) return answer;
  link.report_posted();
  if (link.health.taken()) note_up(flow, link);
  rail.statistics.bytes_sent += buffer.bytes;  // the peer counts every message that it receives
  return answer;
}

void Poster::note_up(const Flow& flow, const Link& link) const {
  if (!log_enabled(LogLevel::debug)) return;
  log_debug(core_.rails[link.rail()].in_log(), "link to {}: up, epoch {}", flow.route->who, link.health.epoch + 1);
}

/// One frame in so many is timed, from the rail's taking to its acknowledgement, so that the others do not pay for it.
void Poster::begin_timing(Segment& segment) {
  until_timed_ = kFramesPerTimed;
  if (core_.telemetry == nullptr) return;
  segment.timed = true;
  segment.stamp.posted_at = core_.clock->now();
}

void Poster::note_failed(const Flow& flow, const Link& link) {
  const std::uint16_t index = flow.route->index_of(link);
  const auto same = [&](const FailedPost& post) { return post.route == flow.route && post.link == index; };
  if (std::ranges::any_of(failed_, same)) return;
  failed_.push_back({flow.route, index, link.health.epoch, core_.rails[link.rail()].failure()});
  core_.has_chores = true;
}

}  // namespace railyard::transport
