/// Arrivals: messages and landed writes become effects, in sequence, once each. Changes state only; posts nothing but
/// the receive buffer it was given.
#include <fmt/format.h>

#include <cstring>

#include "base/log.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {

[[gnu::hot]] void Engine::handle(std::size_t rail, const fabric::Event& event) {
  using Kind = fabric::Event::Kind;
  switch (event.kind) {
    case Kind::received:
      return on_message(rail, static_cast<memory::Buffer*>(event.context), event.bytes);
    case Kind::landed:
      return on_landed(event, rail);
    case Kind::failed:
      return on_failed(rail, event);
    case Kind::sent:
    case Kind::written:
      if (static_cast<Tag>(event.context->tag) == Tag::report) {
        return give_report(static_cast<memory::Buffer*>(event.context));
      }
      return on_segment_done(static_cast<Segment*>(event.context), true);
    case Kind::read: {
      auto* const segment = static_cast<Segment*>(event.context);
      rail_states_[rail].statistics.bytes_received += segment->bytes;
      return on_segment_done(segment, true);
    }
    case Kind::lost:
      return on_lost(rail, event);
    case Kind::left:
      return on_left(event.link);
    case Kind::rail_down:
    case Kind::rail_up:
      return on_rail_state(rail, event.kind == Kind::rail_down);
  }
}

void Engine::give_report(memory::Buffer* buffer) {
  static_cast<Link*>(buffer->owner)->report_done();
  reports_->give(buffer);
}

void Engine::give_receive(std::size_t rail, memory::Buffer* buffer) {
  // The buffer just read is the one still in cache.
  RailState& state = rail_states_[rail];
  if (state.to_post == nullptr && state.posted_receives < state.most_receives && post_receive(rail, *buffer)) return;
  buffer->next = state.to_post;
  state.to_post = buffer;
}

[[gnu::hot]] void Engine::on_message(std::size_t rail, memory::Buffer* buffer, std::size_t bytes) {
  --rail_states_[rail].posted_receives;
  rail_states_[rail].statistics.bytes_received += bytes;
  buffer->bytes = static_cast<std::uint32_t>(bytes);
  const auto header = wire::parse_header({buffer->data, bytes});
  if (!header) {
    ++counts_.dropped_malformed;
    return give_receive(rail, buffer);
  }
  Flow* const found = arriving_flow(header->flow);
  if (found == nullptr || found->session_in != header->session || found->failed.load(std::memory_order_relaxed)) {
    ++counts_.dropped_stale;
    return give_receive(rail, buffer);
  }
  Flow& flow = *found;
  flow.route->heard_at = beat_;
  accept_report(flow, *header);
  if (header->kind != wire::FrameKind::sequenced) {
    if (header->kind == wire::FrameKind::notice) on_notice(flow, *buffer);
    return give_receive(rail, buffer);
  }

  switch (flow.receiver.on_frame(header->sequence, window_)) {
    case FlowReceiver::Arrival::in_turn:
      // The common case: applied from the buffer it came in.
      if (!apply_frame(flow, *header, *buffer)) return post_receives(rail);
      flow.receiver.advance();
      report_soon(flow);
      give_receive(rail, buffer);
      return release_ready(flow);
    case FlowReceiver::Arrival::early:
      // The buffer itself waits, another takes its place.
      flow.receiver.hold(header->sequence, buffer);
      ++counts_.held_out_of_order;
      return post_receives(rail);
    case FlowReceiver::Arrival::again:
      ++counts_.dropped_stale;
      flow.receiver.owe_report();  // the sender has missed an acknowledgement: say it again
      report_soon(flow);
      return give_receive(rail, buffer);
    case FlowReceiver::Arrival::beyond:
      ++counts_.dropped_malformed;
      return give_receive(rail, buffer);
  }
}

void Engine::on_landed(const fabric::Event& event, std::size_t rail) {
  if (event.context != nullptr) {  // a rail whose writes use up a receive
    --rail_states_[rail].posted_receives;
    give_receive(rail, static_cast<memory::Buffer*>(event.context));
  }
  rail_states_[rail].statistics.bytes_received += event.bytes;
  const auto immediate = wire::Immediate::unpack(event.immediate);
  if (immediate.kind != wire::Immediate::kChunk) {
    ++counts_.dropped_malformed;
    return;
  }
  Flow* const found = arriving_flow(immediate.flow);
  if (found == nullptr || found->failed.load(std::memory_order_relaxed)) {
    ++counts_.dropped_stale;
    return;
  }
  Flow& flow = *found;
  flow.route->heard_at = beat_;
  Scheduler::note_chunk(flow);
  if (!flow.receiver.on_landed(immediate.sequence)) {
    ++counts_.dropped_stale;
    return;
  }
  if (!flow.in_ready) release_ready(flow);
}

[[gnu::hot]] void Engine::accept_report(Flow& flow, const wire::FrameHeader& header) {
  const auto news = flow.sender.on_report(header.acknowledged, header.limit, [&](Segment* segment) {
    // A lone link's writes complete when they have left: only the acknowledgement tells how long they took.
    if (flow.shares.size() == 1 && segment->operation->kind == Operation::Kind::write && !segment->voided) {
      flow.route->links.front().note_trip(now_ - segment->stamp.posted_at);
    }
    leave_flight(*segment, true);
    finish_segment(segment);
    if (segment->posted) return;
    if (segment->again) flow.sender.forget_again(*segment);
    release_segment(segment);
  });
  if (news == FlowSender::News::impossible) ++counts_.dropped_malformed;
}

/// The peer is owed an acknowledgement.
void Engine::report_soon(Flow& flow) {
  if (!flow.heard) {
    flow.heard = true;
    ++heard_flows_;
  }
  if (!flow.in_reporting) {
    flow.in_reporting = true;
    reporting_.push_back(&flow);
  }
}

void Engine::release_ready(Flow& flow) {
  // A long run of held frames is released a batch at a time, so that one flow does not hold up the others.
  std::uint32_t left = settings_.batch;
  while (flow.receiver.ready() && !flow.applying) {
    if (flow.receiver.holds_next() && left-- == 0) {
      if (!flow.in_ready) {
        flow.in_ready = true;
        ready_.push_back(&flow);
      }
      return;
    }
    if (memory::Buffer* buffer = flow.receiver.take_next()) {
      if (!apply_frame(flow, *wire::parse_header({buffer->data, buffer->bytes}), *buffer)) return;
      receives_->give(buffer);
    }
    flow.receiver.advance();
    report_soon(flow);
  }
}

bool Engine::release_all_ready() {
  std::vector<Flow*> turn;
  turn.swap(ready_);
  for (Flow* flow : turn) {
    flow->in_ready = false;
    if (!flow->failed.load(std::memory_order_relaxed)) release_ready(*flow);
  }
  return !turn.empty();
}

/// False: it waits, and keeps its buffer, until a word of a GPU's memory is in place.
[[gnu::hot]] bool Engine::apply_frame(Flow& flow, const wire::FrameHeader& header, memory::Buffer& buffer) {
  // An operation whose first part was refused, or failed at its origin, has no second.
  FrameProgress frame(buffer, header, flow.receiver.take_skip(header.sequence));
  return apply_records(flow, frame);
}

[[gnu::hot]] bool Engine::apply_records(Flow& flow, FrameProgress& frame) {
  FailureCause cause = FailureCause::none;
  for (; auto record = frame.reader.next(); ++frame.index) {
    if (!record->joined && frame.index != 0) frame.skip = false;
    if (frame.skip && record->header.kind == wire::RecordKind::message) {
      record->header.detail |= wire::kFailedMessage;
    } else if (frame.skip) {
      continue;
    }
    const Applied applied = apply_record(flow, *record, frame.reader, cause);
    if (applied == Applied::yes) continue;
    if (applied == Applied::later) {
      if (flow.failed.load(std::memory_order_relaxed)) {  // by a refusal before this
        words_.forget(flow);
        return true;
      }
      frame.waiting = *record;
      flow.applying.emplace(frame);
      return false;
    }
    refuse(flow, frame.sequence, frame.index, 1, cause);
    frame.skip = true;
  }
  if (frame.reader.ok()) return true;
  ++counts_.dropped_malformed;
  refuse(flow, frame.sequence, frame.index, frame.records - frame.index, FailureCause::malformed);
  return true;
}

/// What is refused, its origin hears of. A fetch hears by its reply.
[[gnu::hot]] Engine::Applied Engine::apply_record(Flow& flow, const wire::RecordReader::Record& record,
                                                  const wire::RecordReader& rest, FailureCause& cause) {
  if (record.header.kind == wire::RecordKind::reply) {
    apply_reply(flow, record);
    return Applied::yes;
  }
  if (record.header.kind == wire::RecordKind::message) {
    if (flow.inbox != nullptr && flow.inbox->on_message(record.header, record.body)) return Applied::yes;
    ++counts_.dropped_malformed;
    cause = FailureCause::malformed;
    return Applied::refused;
  }
  if (record.header.kind == wire::RecordKind::nothing) {
    if (record.header.exposed_region != 0) flow.receiver.skip(static_cast<std::uint32_t>(record.header.offset));
    return Applied::yes;
  }
  bool answered = false;
  const ExposedRegion* exposed_region = exposed_regions_.find(record.header.exposed_region);
  bool good = exposed_region != nullptr;
  if (good && (exposed_region->device >= 0 || exposed_region->mirrored != nullptr)) [[unlikely]] {
    if (record.header.kind == wire::RecordKind::put && exposed_region->device >= 0) {
      const Applied begun = begin_put(flow, *exposed_region, record, rest);
      if (begun != Applied::refused) return begun;
    } else if (begin_word(flow, *exposed_region, record)) {
      return Applied::later;
    }
  }
  switch (record.header.kind) {
    case wire::RecordKind::put:
      good = good && apply_put(*exposed_region, record.header.offset, record.body);
      break;
    case wire::RecordKind::signal: {
      std::uint64_t value = 0;
      good = good && record.body.size() == sizeof value;
      if (good) std::memcpy(&value, record.body.data(), sizeof value);
      good = good &&
             apply_signal(*exposed_region, record.header.offset, static_cast<SignalOp>(record.header.detail), value);
      break;
    }
    case wire::RecordKind::atomic: {
      wire::AtomicBody body;
      if (record.body.size() != sizeof body) {
        good = false;
        break;
      }
      std::memcpy(&body, record.body.data(), sizeof body);
      Reply reply{body.request, 0, 0};
      good = good && apply_atomic(*exposed_region, record.header.offset, record.header.detail, body, reply.value);
      if (!good) reply.status = static_cast<std::uint8_t>(refusal_cause(exposed_region, record));
      if (body.request != 0) {
        if (flow.receiver.replies.size() < kMostFetches) {
          flow.receiver.replies.push_back(reply);
          answered = true;
          activate(flow);
        } else {
          good = false;  // more questions than the peer may ask at a time
        }
      }
      break;
    }
    default:
      good = false;
  }
  if (good) return Applied::yes;
  ++(exposed_region == nullptr ? counts_.dropped_stale : counts_.dropped_malformed);
  cause = refusal_cause(exposed_region, record);
  return answered ? Applied::yes : Applied::refused;
}

void Engine::apply_reply(Flow& flow, const wire::RecordReader::Record& record) {
  std::uint32_t slot = 0;
  std::uint64_t value = 0;
  if (record.body.size() != sizeof value || !slots_.find(record.header.exposed_region, &flow, kSlots, slot)) {
    ++counts_.dropped_stale;
    return;
  }
  std::memcpy(&value, record.body.data(), sizeof value);
  const Slots::Content& content = slots_.content(slot);
  auto cause = static_cast<FailureCause>(record.header.detail);
  if (content.withdrawn) {
    cause = FailureCause::deregistered;
  } else if (cause == FailureCause::none) {
    std::memcpy(content.before, &value, content.width);  // little-endian: the low bytes come first
  }
  end_slot(slot, cause);
  --flow.sender.fetches;
  count_outstanding(flow, -1);
  ++counts_.operations_completed;
}

void Engine::on_failed(std::size_t rail, const fabric::Event& event) {
  const std::string why = rails_[rail]->describe_error(event.error);
  if (event.context == nullptr) {
    log_warn(rails_[rail]->in_log(), "reported an error without an operation: {}", why);
    return;
  }
  switch (static_cast<Tag>(event.context->tag)) {
    case Tag::receive_buffer:  // a message cut short: its link ended
      --rail_states_[rail].posted_receives;
      ++counts_.dropped_stale;
      return give_receive(rail, static_cast<memory::Buffer*>(event.context));
    case Tag::report:
      return give_report(static_cast<memory::Buffer*>(event.context));  // a later one says more
    case Tag::segment:
      break;
  }
  auto* segment = static_cast<Segment*>(event.context);
  segment_came_back(*segment->operation->flow, *segment, event.blame, why);
}

}  // namespace railyard::transport
