/// Scheduler: which flow posts next, which link takes a frame or a chunk, how long a chunk is, and who yields to whom
/// (promise 5). It knows nothing of what frames hold.
///
/// A link is chosen by the time until what is in flight on it is delivered. A chunk on one that is much slower than
/// another also costs what it takes longer there, or an operation on idle links would wait for the slowest of them;
/// from time to time it gets one all the same, to see whether that is still so. A link that is suspected is the last
/// choice: what is lost with a link waits for a fence. Bulk data yields to a flow that sends small messages and waits
/// for each: whatever a rail copies while it is polled, that flow waits for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "transport/flow.hpp"

namespace railyard::transport {

class Scheduler {
 public:
  /// `batch`: posts of one turn of all flows.
  explicit Scheduler(std::uint32_t batch) : batch_(batch) {}

  // ---- Flows with work ----

  bool has_work() const { return !active_.empty(); }
  void add(Flow& flow) {
    if (flow.in_active) return;
    flow.in_active = true;
    active_.push_back(&flow);
  }
  void remove(Flow& flow) {
    std::erase(active_, &flow);
    flow.in_active = false;
  }
  /// Each flow in turn, a quarter of the batch each, until the batch is used up: no flow starves another. `transmit`
  /// posts of a flow what it may, at most so much, and says how much it was. Returns whether that was anything.
  template <typename Transmit>
  bool take_turns(Transmit&& transmit) {
    const std::uint32_t share = std::max(batch_ / 4, 1U);
    std::uint32_t left = batch_;
    std::size_t turns = std::min<std::size_t>(active_.size(), batch_);
    bool moved = false;
    std::size_t kept = 0;
    std::size_t seen = 0;
    for (; seen < active_.size() && turns > 0 && left > 0; ++seen, --turns) {
      Flow& flow = *active_[seen];
      const std::uint32_t posted = transmit(flow, std::min(share, left));
      left -= std::min(posted, left);
      moved |= posted > 0;
      flow.in_active = flow.sender.has_work() || !flow.receiver.replies.empty();
      if (flow.in_active) active_[kept++] = &flow;
    }
    // Flows that had their turn go behind those that had none.
    const auto first = active_.begin() + static_cast<std::ptrdiff_t>(kept);
    active_.erase(first, active_.begin() + static_cast<std::ptrdiff_t>(seen));
    std::rotate(active_.begin(), active_.begin() + static_cast<std::ptrdiff_t>(kept), active_.end());
    return moved;
  }

  // ---- Links. Null: none has room ----

  /// Links that were tried and had no room, as bits.
  using Tried = std::uint64_t;
  static Tried with(Tried tried, const Flow& flow, const Link& link) {
    return tried | Tried{1} << flow.route->index_of(link);
  }
  /// `full`: nothing more fits into it, so that it need not wait for company of its own flow.
  static Link* link_for_frame(Flow& flow, bool full, Tried tried);
  /// The flow's only link, if any frame may go on it now; null: there are several, or `link_for_frame` knows.
  static Link* only_link(Flow& flow) {
    std::vector<Link>& links = flow.route->links;
    if (links.size() != 1) return nullptr;
    Link& only = links.front();
    return only.up() && takes_frame(only, flow.shares.front(), kEagerFrames) ? &only : nullptr;
  }
  /// What must get through at any rate may go on a suspected link.
  static Link* link_for_notice(Flow& flow, Tried tried);
  static Link* link_for_report(Flow& flow, Tried tried);
  /// `left`: of the operation's `bytes`, those that are still to be posted.
  static Link* link_for_chunk(Flow& flow, Tried tried, std::uint64_t bytes, std::uint64_t left, std::int64_t now);
  /// For a chunk that may have broken the last one: a link that it has for itself, so that nothing else can be blamed,
  /// or suffer. Null also while others are still on the link that is kept for it.
  static Link* link_alone(Flow& flow, const Segment& segment);
  static void end_alone(Segment& segment);
  /// Of what is left of the operation, the bytes that go on that link at once.
  static std::uint32_t chunk_bytes(const Flow& flow, const Link& link, const Operation& operation, std::int64_t now);
  /// The next chunk begins with the link after this one. A frame that follows in sequence goes behind it.
  static void chunk_posted(Flow& flow, const Link& link, bool sequenced) {
    const std::uint16_t index = flow.route->index_of(link);
    flow.first_chunk = (index + 1U) % static_cast<std::uint32_t>(flow.shares.size());
    if (sequenced) flow.chunk_on = index;
  }
  /// One has landed that came over that rail: its acknowledgement goes back the same way.
  static void chunk_landed(Flow& flow, std::size_t rail);

  // ---- Who yields to whom ----

  /// A small message of the user's left or arrived on the flow: whoever sends such only waits for each.
  static void note_small(Flow& flow, std::int64_t now);
  static void note_chunk(Flow& flow) {
    flow.lone_messages = 0;
    if (flow.route->latency_flow == &flow) flow.route->latency_flow = nullptr;
  }
  /// Bulk data of the flow keeps the way free for another flow on the same links.
  static bool yields(const Flow& flow, std::int64_t now);

 private:
  /// Frames in flight on a link before the next one waits for company: an idle link sends at once, a busy one fills
  /// frames.
  static constexpr std::uint32_t kEagerFrames = 2;
  /// Full frames in flight on a link.
  static constexpr std::uint32_t kMostFramesOnLink = 64;

  static bool takes_frame(const Link& link, const Share& share, std::uint32_t most) {
    return share.frames < most && link.frames_in_flight() < kMostFramesOnLink;
  }
  template <typename HasRoom>
  static Link* preferred(Flow& flow, std::uint16_t index, Tried tried, HasRoom&& has_room);
  template <typename HasRoom, typename Cost>
  static Link* choose(Flow& flow, std::size_t first, Tried tried, bool suspects, HasRoom&& has_room, Cost&& cost);

  std::uint32_t batch_;
  std::vector<Flow*> active_;
};

}  // namespace railyard::transport
