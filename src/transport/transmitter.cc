#include "transport/transmitter.hpp"

#include <cstring>

namespace railyard::transport {
namespace {

/// A frame with less room than this is full.
constexpr std::size_t kFullMargin = 128;

}  // namespace

[[gnu::hot]] std::uint32_t Transmitter::transmit(Flow& flow, std::uint32_t most) {
  if (flow.sender.corked) return 0;
  if (!flow.receiver.replies.empty()) queue_replies(flow);
  std::uint32_t posted = flow.sender.replay().empty() ? 0 : replay(flow, most);
  while (posted < most && flow.sender.has_queued() && start(flow, *flow.sender.head())) ++posted;
  return posted;
}

/// A queued operation begins, or goes on. False: not now.
bool Transmitter::start(Flow& flow, Operation& operation) {
  if (!flow.sender.may_begin(operation)) return false;
  if (operation.kind != Operation::Kind::frame) return start_bulk(flow, operation);
  if (!post_frame(flow, operation)) return false;
  flow.sender.dequeue();
  return true;
}

void Transmitter::push(Flow& flow) {
  if (!flow.route->watched && flow.sender.has_queued()) nudge_due_ |= watched_.begin(*flow.route);
  transmit(flow, core_.settings.batch);
  settle(flow);
}

/// The end of every submission.
void Transmitter::settle(Flow& flow) {
  core_.rails.ring();
  if (flow.sender.has_queued()) {
    scheduler_.add(flow);
    // Nobody knows whether the caller comes again, to send the rest or to look after the links.
    core_.waiting.nudge();
  }
  if (nudge_due_) nudge_later();
}

void Transmitter::nudge_later() {
  nudge_due_ = false;
  core_.waiting.nudge_later();
}

/// It could not be posted.
void Transmitter::keep(Flow& flow, Operation* frame) {
  flow.sender.enqueue(frame);
  settle(flow);
}

/// On the best link that takes it. `link` has given this answer; null: none was asked yet.
bool Transmitter::post_elsewhere(Flow& flow, Operation& frame, Link* link, fabric::Post answer) {
  const bool full = frame.prompt || frame.next != nullptr || frame.frame->bytes + kFullMargin > wire::kFrameBytes;
  for (Scheduler::Tried tried = 0; answer != fabric::Post::posted;) {
    if (answer == fabric::Post::failed) return false;
    if (link != nullptr) tried = Scheduler::with(tried, flow, *link);
    link = Scheduler::link_for_frame(flow, full, tried);
    if (link == nullptr) return false;
    answer = poster_.post_frame(flow, frame.own, *frame.frame, frame.records, *link, flow.route->index_of(*link));
  }
  return true;
}

void Transmitter::queue_replies(Flow& flow) {
  Operation* frame = flow.sender.head();
  std::vector<Reply>& replies = flow.receiver.replies;
  // A frame at the head that has not left yet takes the answers along.
  std::size_t done = 0;
  while (done < replies.size()) {
    const std::size_t bytes = wire::record_bytes(sizeof(std::uint64_t));
    if (frame == nullptr || frame->kind != Operation::Kind::frame || frame->fenced ||
        frame->frame->bytes + bytes > wire::kFrameBytes) {
      Operation* const fresh = core_.pools.take_frame(flow);
      if (fresh == nullptr) break;
      flow.sender.enqueue_first(fresh);
      frame = fresh;
    }
    const Reply& reply = replies[done++];
    const wire::Answer record{reply.request, reply.status};
    std::byte* body = wire::FrameWriter::append(frame->frame->data, frame->frame->bytes, record.header());
    std::memcpy(body, &reply.value, sizeof reply.value);
    ++frame->records;
  }
  replies.erase(replies.begin(), replies.begin() + static_cast<std::ptrdiff_t>(done));
}

}  // namespace railyard::transport
