/// Transmitter: what a flow has queued, or must send again, leaves in its turn. Frames are whole; what travels between
/// memory and memory is cut into chunks over all links (chunks.cc), and what a dead link has lost goes out again first
/// (replay.cc). Where nothing can leave now the flow waits for its next turn.
#pragma once

#include <cstdint>

#include "transport/completions.hpp"
#include "transport/core.hpp"
#include "transport/poster.hpp"
#include "transport/scheduler.hpp"
#include "transport/watch_list.hpp"

namespace railyard::transport {

class Transmitter {
 public:
  Transmitter(Core& core, Completions& completions, WatchList& watched, Poster& poster)
      : core_(core), completions_(completions), watched_(watched), poster_(poster), scheduler_(core.settings.batch) {}

  /// Some flow has something to send.
  bool has_work() const { return scheduler_.has_work(); }
  /// Each flow in turn. Whether anything left.
  [[gnu::hot]] bool transmit() {
    return scheduler_.take_turns([this](Flow& flow, std::uint32_t most) { return transmit(flow, most); });
  }
  /// The flow has something to send: it is given its turn.
  void activate(Flow& flow) {
    if (watched_.begin(*flow.route)) nudge_due_ = true;
    scheduler_.add(flow);
  }
  /// The flow goes.
  void forget(Flow& flow) { scheduler_.remove(flow); }

  /// The end of a submission: posts what may leave now of what the flow has queued.
  void push(Flow& flow);
  /// The same for a frame that is not queued yet. `goes_on`: another one follows, or `push`, and rings the rails.
  void send(Flow& flow, Operation* frame, bool goes_on = false);
  /// To be posted once more, as soon as its rail has let go of it.
  void send_again(Flow& flow, Segment& segment) {
    if (flow.sender.send_again(segment)) activate(flow);
  }

 private:
  std::uint32_t transmit(Flow& flow, std::uint32_t most);
  bool start(Flow& flow, Operation& operation);
  bool post_frame(Flow& flow, Operation& frame);
  bool post_elsewhere(Flow& flow, Operation& frame, Link* link, fabric::Post answer);
  [[gnu::noinline, gnu::cold]] void keep(Flow& flow, Operation* frame);
  void queue_replies(Flow& flow);
  void settle(Flow& flow);
  void nudge_later();

  // chunks.cc
  bool start_bulk(Flow& flow, Operation& operation);
  bool post_chunk(Flow& flow, Operation& operation);
  bool post_atomic(Flow& flow, Operation& operation);
  fabric::Post post_chunk_on(Flow& flow, Operation& operation, Link& link);

  // replay.cc
  std::uint32_t replay(Flow& flow, std::uint32_t most);
  bool replay_segment(Flow& flow, Segment& segment);
  bool make_void(Segment& segment);
  bool post_void(Flow& flow, Operation& operation);

  Core& core_;
  Completions& completions_;
  WatchList& watched_;
  Poster& poster_;
  Scheduler scheduler_;
  bool nudge_due_ = false;  ///< once what is being submitted has left
};

/// Posts a frame that is the flow's next. False: not now.
[[gnu::always_inline]] inline bool Transmitter::post_frame(Flow& flow, Operation& frame) {
  if (!flow.sender.may_send(core_.window)) return false;
  frame.own.bytes = frame.frame->bytes;
  frame.own.sequence = flow.sender.next_sequence();
  Link* const only = Scheduler::only_link(flow);
  const fabric::Post answer =
      only != nullptr ? poster_.post_frame(flow, frame.own, *frame.frame, frame.records, *only, 0) : fabric::Post::busy;
  if (answer != fabric::Post::posted && !post_elsewhere(flow, frame, only, answer)) return false;
  flow.sender.sent(&frame.own);
  frame.whole = true;
  return true;
}

[[gnu::always_inline]] inline void Transmitter::send(Flow& flow, Operation* frame, bool goes_on) {
  if (flow.sender.holds_back() || !flow.receiver.replies.empty()) [[unlikely]] {
    flow.sender.enqueue(frame);
    return goes_on ? void() : push(flow);
  }
  if (!flow.route->watched) [[unlikely]]
    nudge_due_ |= watched_.begin(*flow.route);
  if (!post_frame(flow, *frame)) [[unlikely]]
    return keep(flow, frame);
  if (goes_on) return;
  core_.rails.ring();
  if (nudge_due_) [[unlikely]]
    nudge_later();
}

}  // namespace railyard::transport
