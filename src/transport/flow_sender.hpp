/// FlowSender: the sending half of a flow. What waits to be sent, what is sent and not acknowledged, what must be sent
/// again because its link died, and what may go next: window, grant and fences decide. It knows no rail, no link but
/// by its index, and no clock.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "transport/flow_receiver.hpp"
#include "transport/operation.hpp"

namespace railyard::transport {

class FlowSender {
 public:
  /// `first`: the number of the first segment.
  explicit FlowSender(std::uint32_t first = 0)
      : next_sequence_(first), acknowledged_(first), limit_(first + kFirstGrant), fence_sequence_(first) {}

  // ---- Operations that wait ----

  /// Operations that one flow may have queued, so that one slow peer does not take every structure.
  static constexpr std::uint32_t kMostQueued = 1024;

  bool has_queued() const { return !queue_.empty(); }
  bool may_queue() const { return queued_ < kMostQueued; }
  std::uint32_t queued() const { return queued_; }
  Operation* head() const { return queue_.head(); }
  Operation* last() const { return queue_.tail(); }
  /// The next operation submitted begins when nothing that came before is under way outside the sequence.
  void request_fence() { fence_requested_ = true; }
  bool fence_requested() const { return fence_requested_; }
  void enqueue(Operation* operation) {
    operation->fenced = std::exchange(fence_requested_, false);
    queue_.push(operation);
    ++queued_;
  }
  /// Ahead of what waits: what the peer waits for.
  void enqueue_first(Operation* operation) {
    queue_.push_front(operation);
    ++queued_;
  }
  /// Takes the newest off again, which has not started.
  void withdraw_last() {
    fence_requested_ = queue_.tail()->fenced;
    queue_.remove_last();
    --queued_;
  }
  /// The head has been sent whole, or never will be.
  Operation* dequeue() {
    --queued_;
    return queue_.pop();
  }

  // ---- The sequence ----

  std::uint32_t next_sequence() const { return next_sequence_; }
  std::uint32_t acknowledged() const { return acknowledged_; }
  /// Window and grant have room for another segment.
  bool may_send(std::uint32_t window) const {
    return next_sequence_ - acknowledged_<window&& static_cast<std::int32_t>(limit_ - next_sequence_)> 0;
  }
  /// Segments that the peer takes beyond those that were sent.
  std::int32_t credits() const { return static_cast<std::int32_t>(limit_ - next_sequence_); }
  /// The segment, which carries the next number, has left.
  void sent(Segment* segment) {
    ++next_sequence_;
    unacknowledged_.push(segment);
  }
  /// Reads, relaxed writes and native atomics have no number.
  void began_unordered() { ++unordered_; }
  void ended_unordered() { --unordered_; }
  bool has_unordered() const { return unordered_ != 0; }
  /// Whether a fence lets the operation at the head begin: not while anything without a number is under way.
  [[gnu::hot]] bool may_begin(Operation& operation);
  /// What lands directly, or reads, waits longer: until all that came before the fence has taken effect. What takes
  /// effect in sequence need not.
  bool may_land();

  /// The oldest segment that is not acknowledged; the others follow through `next`.
  Segment* oldest() const { return unacknowledged_.head(); }
  bool has_unacknowledged() const { return !unacknowledged_.empty(); }

  enum class News : std::uint8_t { yes, old, impossible };
  /// The peer has everything below `acknowledged` and takes segments below `limit`. `done` is called for each segment
  /// that this acknowledges, which is then the caller's.
  template <typename Done>
  News on_report(std::uint32_t acknowledged, std::uint32_t limit, Done&& done) {
    const std::uint32_t news = acknowledged - acknowledged_;
    // Older than what is known already (reordered rails), or nonsense: neither changes anything.
    if (news > next_sequence_ - acknowledged_) return news < 0x80000000U ? News::impossible : News::old;
    if (static_cast<std::int32_t>(limit - limit_) > 0 && limit - acknowledged <= wire::kMaxWindow) limit_ = limit;
    acknowledged_ = acknowledged;
    while (!unacknowledged_.empty() && static_cast<std::int32_t>(unacknowledged_.head()->sequence - acknowledged_) < 0)
      done(unacknowledged_.pop());
    return News::yes;
  }

  // ---- When a link dies ----

  /// What was sent on it waits for the target's word. Returns how many segments that are.
  std::uint32_t on_link_lost(std::uint16_t link);
  /// The target has shut the link out. `arrived`: whether it has the segment of that number. `missing` is called for
  /// each that it lacks, and for each without a number: what becomes of them is the caller's decision.
  template <typename Arrived, typename Missing>
  void on_fenced(std::uint16_t link, Arrived&& arrived, Missing&& missing) {
    for (Segment* segment = unacknowledged_.head(); segment != nullptr; segment = segment->next) {
      if (segment->link != link || !segment->lost) continue;
      segment->lost = false;
      if (!arrived(segment->sequence)) missing(*segment);
    }
    std::erase_if(parked_, [&](Segment* segment) {
      if (segment->link != link) return false;
      missing(*segment);
      return true;
    });
  }
  /// It has no number, and its link is not fenced yet.
  void park(Segment& segment) { parked_.push_back(&segment); }
  /// To be posted once more. False: not before its rail has let go of it.
  bool send_again(Segment& segment) {
    segment.again = true;
    if (segment.posted) return false;
    replay_.push_back(&segment);
    return true;
  }
  /// It was acknowledged meanwhile.
  void forget_again(const Segment& segment) { std::erase(replay_, &segment); }
  /// Posted before anything new. Whoever posts from it takes out what has left.
  std::vector<Segment*>& replay() { return replay_; }
  const std::vector<Segment*>& replay() const { return replay_; }

  // ---- The end ----

  /// The flow has failed. Segments and operations are handed over, each once: those without a number that wait to be
  /// sent again, those that were not acknowledged, and what was not sent.
  template <typename Waiting, typename Unacknowledged, typename Queued>
  void end(Waiting&& waiting, Unacknowledged&& unacknowledged, Queued&& queued) {
    for (auto* list : {&parked_, &replay_}) {
      // The rest of `replay_` is also unacknowledged.
      for (Segment* segment : *list)
        if (!segment->operation->sequenced()) waiting(segment);
      list->clear();
    }
    while (!unacknowledged_.empty()) unacknowledged(unacknowledged_.pop());
    while (!queue_.empty()) queued(queue_.pop());
    queued_ = 0;
  }

  /// What comes now must wait: for what comes next, for a fence, or behind what is queued or sent again.
  bool holds_back() const { return corked || fence_requested_ || !queue_.empty() || !replay_.empty(); }
  /// Whether there is anything to post.
  bool has_work() const { return !queue_.empty() || !replay_.empty(); }

  bool corked = false;        ///< what is queued leaves with what comes next
  std::uint32_t frames = 0;   ///< that wait or are unacknowledged
  std::uint32_t fetches = 0;  ///< under way

 private:
  Fifo<Operation> queue_;
  std::uint32_t queued_ = 0;
  Fifo<Segment> unacknowledged_;
  std::uint32_t next_sequence_;
  std::uint32_t acknowledged_;
  std::uint32_t limit_;
  std::uint32_t unordered_ = 0;  ///< operations without a number that are under way
  std::uint32_t fence_sequence_;
  bool fence_requested_ = false;
  bool fence_active_ = false;  ///< writes and reads wait until `fence_sequence_` is acknowledged
  std::vector<Segment*> replay_;
  std::vector<Segment*> parked_;
};

}  // namespace railyard::transport
