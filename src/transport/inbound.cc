/// What a small operation needs when it arrives or is acknowledged, `on_message` and `on_segment_done` with all that
/// they call, is in this file and in headers.
#include "transport/inbound.hpp"

namespace railyard::transport {
namespace {

/// Both clocks are read before either is written, so that two words take one load and one store.
void note_heard(Route& route, const Core& core) {
  const std::int64_t now = core.now;
  const std::int64_t health_clock = core.health_clock;
  route.message_at = now;
  route.heard_at = health_clock;
}

}  // namespace

inline void Inbound::accept_report(Flow& flow, const wire::FrameHeader& header) {
  Completions& completions = parts_.completions;
  const auto news = flow.sender.on_report(header.acknowledged, header.limit, [&](Segment* segment) {
    if (segment->operation->kind != Operation::Kind::frame) [[unlikely]]
      return chunk_acknowledged(flow, *segment);
    if (segment->timed) [[unlikely]]
      completions.end_timing(*segment);
    completions.leave_flight(*segment, true);
    completions.finish_frame(flow, *segment);
    if (segment->posted) return;
    if (segment->again) [[unlikely]]
      flow.sender.forget_again(*segment);
    core_.pools.give_frame(segment->operation);
  });
  if (news == FlowSender::News::impossible) [[unlikely]]
    ++core_.counts.dropped_malformed;
}

void Inbound::on_message(RailState& rail, memory::Buffer* buffer, std::size_t bytes) {
  RailSet::took_receive(rail);
  rail.statistics.bytes_received += bytes;
  const wire::FrameHeader* const header = wire::parse_header({buffer->data, bytes});
  if (header == nullptr) [[unlikely]] {
    ++core_.counts.dropped_malformed;
    return core_.rails.give_receive(rail, buffer);
  }
  Flow* const found = parts_.peers.arriving(header->flow);
  if (found == nullptr || found->session_in != header->session || found->failed.load(std::memory_order_relaxed))
      [[unlikely]] {
    ++core_.counts.dropped_stale;
    return core_.rails.give_receive(rail, buffer);
  }
  Flow& flow = *found;
  note_heard(*flow.route, core_);
  accept_report(flow, *header);
  if (header->kind != wire::FrameKind::sequenced) {
    if (header->kind == wire::FrameKind::notice) parts_.notices.on_notice(flow, *header);
    return core_.rails.give_receive(rail, buffer);
  }
  const FlowReceiver::Arrival arrival = flow.receiver.on_frame(header->sequence, core_.window);
  if (arrival != FlowReceiver::Arrival::in_turn) [[unlikely]]
    return on_other_turn(flow, header->sequence, arrival, rail, buffer);
  // The common case: applied from the buffer it came in. An operation whose first part was refused, or failed at its
  // origin, has no second.
  if (!parts_.applier.apply(flow, FrameProgress::begin(*buffer, flow.receiver.take_skip(header->sequence))))
      [[unlikely]] {
    flow.receiver.wait_in_turn();
    return core_.rails.post_receives(rail);
  }
  flow.receiver.applied_in_turn();
  parts_.reports.owe(flow);
  core_.rails.give_receive(rail, buffer);
  if (flow.receiver.ready()) [[unlikely]]
    release_ready(flow);
}

/// A frame, which nobody traces and its target does not lack, asks for nothing else, and needs no register saved.
void Inbound::on_segment_done(Segment* segment) {
  if (segment->operation->kind != Operation::Kind::frame || segment->again || core_.trace.on()) [[unlikely]]
    return on_other_done(segment);
  Completions::let_go(*segment);
  if (segment->in_flight) Completions::frame_left(*segment);
  if (segment->finished) core_.pools.give_frame(segment->operation);
}

void Inbound::on_other_done(Segment* segment) {
  Completions& completions = parts_.completions;
  Completions::let_go(*segment);
  if (segment->again) [[unlikely]] {
    // Its target has shut the link out and lacks it: that its buffer is free again says nothing.
    completions.leave_flight(*segment, false);
    if (!segment->finished) return parts_.transmitter.send_again(*segment->operation->flow, *segment);
    return completions.release(*segment);
  }
  completions.leave_flight(*segment, true);
  if (!segment->finished && !segment->operation->sequenced()) completions.finish(*segment);
  if (segment->finished) completions.release(*segment);
}

/// A frame that came before its turn, or too late, or out of nowhere.
void Inbound::on_other_turn(Flow& flow, std::uint32_t sequence, FlowReceiver::Arrival arrival, RailState& rail,
                            memory::Buffer* buffer) {
  if (arrival == FlowReceiver::Arrival::early) {
    // The buffer itself waits, another takes its place.
    flow.receiver.hold(sequence, buffer);
    ++core_.counts.held_out_of_order;
    return core_.rails.post_receives(rail);
  }
  if (arrival == FlowReceiver::Arrival::again) {
    ++core_.counts.dropped_stale;
    flow.receiver.owe_report();  // the sender has missed an acknowledgement: say it again
    parts_.reports.owe(flow);
  } else {
    ++core_.counts.dropped_malformed;
  }
  core_.rails.give_receive(rail, buffer);
}

void Inbound::on_landed(RailState& rail, const fabric::Event& event) {
  if (event.context != nullptr) {  // a rail whose writes use up a receive
    RailSet::took_receive(rail);
    core_.rails.give_receive(rail, static_cast<memory::Buffer*>(event.context));
  }
  rail.statistics.bytes_received += event.bytes;
  const auto immediate = wire::Immediate::unpack(event.immediate);
  if (immediate.kind != wire::Immediate::kChunk) {
    ++core_.counts.dropped_malformed;
    return;
  }
  Flow* const found = parts_.peers.arriving(immediate.flow);
  if (found == nullptr || found->failed.load(std::memory_order_relaxed)) {
    ++core_.counts.dropped_stale;
    return;
  }
  Flow& flow = *found;
  note_heard(*flow.route, core_);
  Scheduler::note_chunk(flow);
  if (!flow.receiver.on_landed(immediate.sequence)) {
    ++core_.counts.dropped_stale;
    return;
  }
  if (flow.shares.size() != 1) Scheduler::chunk_landed(flow, rail.index);
  if (!flow.in_ready) release_ready(flow);
}

void Inbound::chunk_acknowledged(Flow& flow, Segment& segment) {
  // A lone link's writes complete when they have left: only the acknowledgement tells how long they took.
  if (flow.shares.size() == 1 && segment.operation->kind == Operation::Kind::write && !segment.voided)
    flow.route->links.front().note_trip(core_.now - segment.stamp.posted_at);
  parts_.completions.leave_flight(segment, true);
  parts_.completions.finish(segment);
  if (segment.posted) return;
  if (segment.again) flow.sender.forget_again(segment);
  parts_.completions.release(segment);
}

void Inbound::release_ready(Flow& flow) {
  // A long run of held frames is released a batch at a time, so that one flow does not hold up the others.
  std::uint32_t left = core_.settings.batch;
  while (flow.receiver.ready() && !flow.applying) {
    if (flow.receiver.holds_next() && left-- == 0) {
      if (!flow.in_ready) {
        flow.in_ready = true;
        ready_.push_back(&flow);
      }
      return;
    }
    if (memory::Buffer* buffer = flow.receiver.take_next()) {
      const bool skip = flow.receiver.take_skip(flow.receiver.next());
      if (!parts_.applier.apply_rest(flow, FrameProgress::begin(*buffer, skip))) return;
      core_.rails.release(buffer);
    }
    flow.receiver.advance();
    parts_.reports.owe(flow);
  }
}

bool Inbound::release_ready() {
  std::vector<Flow*> turn;
  turn.swap(ready_);
  for (Flow* flow : turn) {
    flow->in_ready = false;
    if (!flow->failed.load(std::memory_order_relaxed)) release_ready(*flow);
  }
  return !turn.empty();
}

bool Inbound::end_words() {
  DeviceWords& words = parts_.memory.words();
  words.advance(core_.now);
  const auto ended = words.take_ended();
  for (const DeviceWords::End& end : ended) {
    if (end.waiter.own != nullptr) {
      end.waiter.own->before = end.before;
      end.waiter.own->good = end.outcome == DeviceWords::Outcome::done;
      end.waiter.own->over.store(true, std::memory_order_release);
    }
    if (end.waiter.flow != nullptr && end.waiter.flow->applying) end_word(*end.waiter.flow, end);
  }
  return !ended.empty();
}

void Inbound::end_word(Flow& flow, const DeviceWords::End& end) {
  memory::Buffer* const buffer = flow.applying->buffer;
  if (!parts_.applier.resume(flow, end)) return;
  core_.rails.release(buffer);
  if (flow.failed.load(std::memory_order_relaxed)) return;
  flow.receiver.advance();
  parts_.reports.owe(flow);
  release_ready(flow);
}

void Inbound::forget(Flow& flow) {
  std::erase(ready_, &flow);
  flow.in_ready = false;
}

}  // namespace railyard::transport
