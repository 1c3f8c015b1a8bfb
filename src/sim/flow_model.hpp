/// What one source has done to one target, and what of it must be visible there.
///
/// Operations have a position in the order they were submitted. Evidence (a signal seen, an answer, a completion) that
/// the operation at a position took effect makes everything that was ordered before it due: it is checked byte for byte
/// on the spot. A place is used again only after its bytes were found right, as a program would; in between, most often
/// at once, the target fills it with other bytes, so that a write that lands once more is seen even if it brings the
/// same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "sim/findings.hpp"
#include "sim/layout.hpp"
#include "sim/pattern.hpp"

namespace railyard::sim {

class FlowModel {
 public:
  using Position = std::uint32_t;
  using PutId = std::uint32_t;
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// `memory` is the target's window. Marks the guards around this source's slots.
  FlowModel(int source, int target, const Layout& layout, std::span<std::byte> memory, Findings& findings);

  int source() const { return source_; }
  int target() const { return target_; }

  /// A slot of at least `bytes` that may be written to, or kNone. Checks that nothing changed it since its last use.
  std::uint32_t take_slot(std::size_t bytes, Random& random);
  std::size_t slot_offset(std::uint32_t slot) const {
    return layout_.slot_offset(static_cast<std::size_t>(source_), slot);
  }

  /// Records a submitted put to the slot `index`. A second one to a slot whose put is still due needs a fence in
  /// between.
  PutId put(std::uint32_t index, std::size_t bytes, const Pattern& pattern, bool relaxed, std::string_view what,
            std::uint64_t operation);
  void fence() { log_.push_back({Entry::Kind::fence, 0}); }
  /// Records an operation that takes effect in order: evidence of it is evidence of all before.
  Position mark() {
    log_.push_back({Entry::Kind::mark, 0});
    return static_cast<Position>(log_.size() - 1);
  }

  /// The operation marked at `position` took effect.
  void confirm(Position position, std::string_view evidence);
  /// This put is complete at its target.
  void confirm_put(PutId put, std::string_view evidence);
  /// Everything submitted so far is complete.
  void confirm_all(std::string_view evidence);

  /// A get reads the put's slot: it is not used again until `end_read`.
  void begin_read(PutId put) { ++slots_[puts_[put].slot].readers; }
  void end_read(PutId put) { --slots_[puts_[put].slot].readers; }
  /// Whether the bytes are what the put brought; tells early from corrupt.
  void check_read(PutId put, std::span<const std::byte> bytes, std::string_view evidence);

  /// The target has been told that the source is lost, and uses every slot for something else: nothing of the source's
  /// may land any more, and nothing that it does is looked at.
  void cut();

  /// After all is over: every put was seen, unless the source died and not `all` of them had to arrive; every slot and
  /// guard is as it should be.
  void finish(bool all = true);
  bool all_visible() const { return visible_ == puts_.size(); }

 private:
  struct Entry {
    enum class Kind : std::uint8_t { put, fence, mark };
    Kind kind;
    PutId put;
  };
  struct Put {
    std::uint32_t slot = 0;
    std::size_t bytes = 0;
    Pattern pattern;
    std::string_view what;  ///< for findings, with `operation`
    std::uint64_t operation = 0;
    PutId over = kNone;   ///< the put to the same place that came before it, while that was due
    PutId under = kNone;  ///< the one that came after
    bool relaxed = false;
    bool visible = false;
    std::byte before{};  ///< what the slot was filled with
  };
  struct Slot {
    /// wrong: what a put left there was wrong and reported; nothing that follows from it is.
    enum class State : std::uint8_t { filled, due, visible, wrong };
    State state = State::filled;
    PutId newest = kNone;
    std::size_t used = 0;  ///< most bytes that were ever put here
    std::byte fill{};      ///< what [0, used) holds in the state `filled`
    std::uint32_t readers = 0;
  };

  std::span<std::byte> slot_memory(std::uint32_t slot) const {
    return memory_.subspan(slot_offset(slot), layout_.slot_bytes(slot));
  }
  void see(PutId id, std::string_view evidence);
  void see_relaxed(Position before, std::string_view evidence);
  bool compare(const Put& put, std::span<const std::byte> bytes, std::string_view evidence);
  void check_guards(std::uint32_t slot);
  void check_unused(std::uint32_t index);
  void fill(std::uint32_t index, std::byte with);
  std::string name() const;
  std::string name(const Put& put) const;

  int source_;
  int target_;
  const Layout& layout_;
  std::span<std::byte> memory_;
  Findings& findings_;
  std::vector<Entry> log_;
  std::vector<Put> puts_;
  std::vector<PutId> relaxed_;  ///< not covered by evidence yet
  std::vector<Position> relaxed_at_;
  std::vector<Slot> slots_;
  Position confirmed_ = 0;  ///< log entries before this are due and checked
  std::size_t visible_ = 0;
  bool cut_ = false;
};

}  // namespace railyard::sim
