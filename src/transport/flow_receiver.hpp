/// FlowReceiver: the receiving half of a flow (promises 2 and 3: in order, none twice). It knows which segments have
/// arrived, keeps those that came before their turn, and decides what the peer is told: how far everything has taken
/// effect, how far it may send, what was refused. It knows no rail, no link and no clock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/slab.hpp"
#include "transport/failures.hpp"
#include "transport/held_frames.hpp"
#include "transport/receive_window.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

/// Segments a sender may send before the first grant.
inline constexpr std::uint32_t kFirstGrant = 16;
/// Fetching operations a sender may have outstanding; the target keeps room for so many answers, so that applying a
/// request never waits for anything (no deadlock between two ranks that fetch from each other).
inline constexpr std::uint32_t kMostFetches = 64;

/// An answer that waits for a frame to carry it.
struct Reply {
  std::uint32_t request = 0;
  std::uint8_t status = 0;
  std::uint64_t value = 0;
};

class FlowReceiver {
 public:
  /// `first`: the number of the peer's first segment.
  explicit FlowReceiver(std::uint32_t first = 0) : arrivals_(first), granted_(first + kFirstGrant) {}

  enum class Arrival : std::uint8_t {
    in_turn,  ///< it takes effect now, and then it has `applied_in_turn`; or it must `wait_in_turn`
    early,    ///< it waits for its turn: `hold` it
    again,    ///< it came before, or lies behind; the sender has missed an acknowledgement
    beyond,   ///< further ahead than any grant
  };

  // ---- Arrivals ----

  /// A frame. `window`: how far ahead of its turn a frame may come.
  Arrival on_frame(std::uint32_t sequence, std::uint32_t window) {
    const std::uint32_t ahead = sequence - arrivals_.next();
    if (ahead == 0 && !arrivals_.ready()) return Arrival::in_turn;
    if (ahead >= window && ahead < 0x80000000U) return Arrival::beyond;
    return arrivals_.arrive(sequence) == ReceiveWindow::Arrival::fresh ? Arrival::early : Arrival::again;
  }
  /// A chunk has landed, of whose number the immediate's bits are known. False: it came before, or is of an older flow
  /// of this id: an immediate names no session, but nothing lies beyond the grant.
  bool on_landed(std::uint32_t low_bits) {
    const std::uint32_t sequence = arrivals_.expand(low_bits);
    awaited_ = true;
    return static_cast<std::int32_t>(sequence - granted_) < 0 &&
           arrivals_.arrive(sequence) == ReceiveWindow::Arrival::fresh;
  }
  void hold(std::uint32_t sequence, memory::Buffer* frame) { held_.put(sequence, frame); }

  // ---- Taking effect ----

  /// The lowest segment that has not taken effect yet.
  std::uint32_t next() const { return arrivals_.next(); }
  /// Its turn has come.
  bool ready() const { return arrivals_.ready(); }
  /// And it is a frame that was held.
  bool holds_next() const { return held_.holds(arrivals_.next()); }
  /// That frame, to be applied before `advance`; null: a chunk, which has landed.
  memory::Buffer* take_next() { return held_.take(arrivals_.next()); }
  void advance() {
    arrivals_.advance();
    ++unreported_;
  }
  /// The same for a frame that was in turn, and was not held up.
  void applied_in_turn() {
    arrivals_.pass();
    ++unreported_;
  }
  /// It has arrived, and takes effect later: `advance` then.
  void wait_in_turn() { arrivals_.arrive(arrivals_.next()); }

  // ---- What the peer is told ----

  /// Segments below this are acknowledged: what was refused is not before the peer knows.
  std::uint32_t acknowledged() const { return refusals_.empty() ? arrivals_.next() : refusals_.front().sequence; }
  /// How far the peer may send: never less than was said before.
  std::uint32_t grant(std::uint32_t segments) {
    const std::uint32_t target = arrivals_.next() + segments;
    if (static_cast<std::int32_t>(target - granted_) > 0) granted_ = target;
    return granted_;
  }
  /// Something new is to be said, or to be said again.
  void owe_report() {
    ++unreported_;
    awaited_ = true;
  }
  bool owes_report() const { return unreported_ != 0; }
  /// The peer waits to hear of what has arrived. Only flows with an inbox ask for that: others are always waited for.
  void await_report() { awaited_ = true; }
  bool report_awaited() const { return awaited_; }
  /// It is time, though more is arriving.
  bool report_due() const { return unreported_ >= kReportEvery || granted_ - arrivals_.next() < kFirstGrant / 2; }
  /// A header has left that says it all.
  void reported() {
    unreported_ = 0;
    awaited_ = false;
  }
  /// What has arrived from `next` on, for a sender whose link has died: a bit for each, 64 to a word. Returns the words
  /// that count.
  std::uint32_t arrived_ahead(std::span<std::uint64_t> words) const;
  bool has_arrived(std::uint32_t sequence) const { return arrivals_.arrived(sequence); }

  // ---- Refusals: docs/protocol.md ----

  /// Records of the peer's that are not applied. False: more than an honest peer can have refused.
  bool refuse(std::uint32_t sequence, std::uint32_t record, std::uint32_t count, FailureCause cause);
  bool has_refusals() const { return !refusals_.empty(); }
  /// Those that the peer does not know of yet, by sequence.
  std::span<const wire::RefusedRecords> refusals() const { return refusals_; }
  /// The peer knows of those up to this. False: nothing new.
  bool on_confirmed(std::uint64_t known);
  /// The first operation of that frame has failed at its origin: it is not applied when it comes.
  void skip(std::uint32_t sequence) {
    if (skips_.size() < wire::kMaxWindow) skips_.push_back(sequence);
  }
  bool take_skip(std::uint32_t sequence) { return !skips_.empty() && std::erase(skips_, sequence) != 0; }

  /// The flow has failed: frames that are held go back.
  template <typename Give>
  void end(Give&& give) {
    held_.release(give);
    replies.clear();
    refusals_.clear();
  }

  std::vector<Reply> replies;  ///< to the peer's fetches, at most kMostFetches

 private:
  /// Segments that took effect before an acknowledgement leaves even while more are arriving.
  static constexpr std::uint32_t kReportEvery = 32;

  ReceiveWindow arrivals_;
  HeldFrames held_;
  std::uint32_t granted_;
  std::uint32_t unreported_ = 0;  ///< segments that took effect since the last acknowledgement
  bool awaited_ = false;          ///< the peer waits for that of one of them
  std::vector<wire::RefusedRecords> refusals_;
  std::vector<std::uint32_t> skips_;
};

}  // namespace railyard::transport
