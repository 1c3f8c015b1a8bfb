/// Program: what one rank does. Submits random operations, watches its signals and counters, asks after its tickets,
/// and tells the model what it saw. Never waits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/buffers.hpp"
#include "sim/stage.hpp"

namespace railyard::sim {

class Program {
 public:
  Program(Stage& stage, int rank);

  /// One turn: may submit, make progress, look around, or sleep.
  void turn();
  /// Makes progress and looks on, for the end of a run.
  void look_around();
  /// Its process has not died. A dead one must not be asked for anything.
  bool alive() const { return stage_.fabric().alive(rank_); }
  /// It may make calls now.
  bool able() const { return alive() && !stage_.fabric().paused(rank_); }
  /// Nothing of this rank is under way.
  bool idle() const { return outstanding_.empty() && (stage_.brief == nullptr || stage_.brief->idle(rank_)); }
  /// Sends a last signal to each target that lacks one; false: not all of them could be sent yet.
  bool say_goodbye();
  /// Checks what this rank has been sent, after everything is over.
  void finish();
  /// What is still under way, in words, as findings.
  void report_stuck();

 private:
  /// A submitted operation that is not complete yet.
  struct Outstanding {
    enum class Fetch : std::uint8_t { none, own, add, swap, compare };
    Kind kind = Kind::signal;
    Fetch fetch = Fetch::none;
    bool source_free = true;  ///< its buffer was given back, or it has none
    bool is_get = false;
    Ticket ticket;
    Pair* pair = nullptr;
    FlowModel::Position position = FlowModel::kNone;
    FlowModel::PutId put = FlowModel::kNone;
    std::uint64_t operation = 0;
    std::uint32_t buffer = Buffers::kNone;
    std::size_t shift = 0;
    std::size_t bytes = 0;
    std::uint32_t counter = UINT32_MAX;
    std::uint64_t counter_before = 0;
    std::uint64_t counter_value = 0;
    std::uint32_t cell = UINT32_MAX;
    std::uint64_t expected = 0;  ///< own: the value before; compare: what it was compared with
    std::uint64_t brought = 0;
    std::uint64_t order = 0;
    std::size_t constant_offset = 0;
  };
  /// A payload in a buffer of ours on its way to a slot of the target.
  struct Payload {
    std::uint32_t slot = FlowModel::kNone;
    std::uint32_t buffer = Buffers::kNone;
    std::size_t shift = 0;
    std::size_t bytes = 0;
    std::uint64_t operation = 0;
    Pattern pattern;
    const std::byte* source = nullptr;
  };

  // Submitting (submit.cc).
  bool submit(Kind kind, Pair& pair);
  int draw_target();
  Kind draw_kind();
  std::size_t draw_size();
  bool prepare(Pair& pair, std::size_t bytes, Payload& payload);
  bool prepare_for_slot(std::uint32_t slot, std::size_t bytes, Payload& payload);
  void abandon(const Payload& payload);
  bool accepted(const Result<Ticket>& result, Kind kind, const Pair& pair);
  bool is_peer_loss(const Error& error, int target);
  void cut_off(int source);
  bool changed_since_cut(const Pair& pair);
  Outstanding& track(Kind kind, Pair& pair, const Ticket& ticket);
  Outstanding& track_put(Kind kind, Pair& pair, const Ticket& ticket, const Payload& payload, bool relaxed);
  SignalUpdate draw_signal(Pair& pair, int& which);
  void record_signal(Pair& pair, const SignalUpdate& update, int which, FlowModel::Position position);
  bool do_put_signal(Kind kind, Pair& pair);
  bool do_signal(Pair& pair);
  bool do_put(Kind kind, Pair& pair);
  bool do_relaxed(Pair& pair);
  bool do_overwrite(Pair& pair);
  bool do_put_value(Pair& pair);
  bool do_get(Pair& pair);
  bool do_put_get(Pair& pair);
  bool do_put_vector(Pair& pair);
  bool do_get_vector(Pair& pair);
  bool get_slot(Pair& pair, FlowModel::PutId put, std::uint32_t slot, std::size_t bytes);
  bool fence(Pair& pair);
  std::uint32_t take_counter();

  // Submitting atomics (atomics.cc).
  bool do_atomic_own(Pair& pair);
  bool do_atomic_add(Pair& pair);
  bool do_atomic_swap(Pair& pair);
  bool do_atomic_compare(Pair& pair);
  std::uint32_t take_cell();
  std::uint64_t& cell_word(std::uint32_t cell) { return cells_[cell]; }

  // Looking (look.cc).
  void watch_signals();
  void watch_counters();
  void ask_after(std::size_t index);
  void ask_quiet();
  void source_is_free(Outstanding& done);
  void complete(Outstanding& done);
  void give_up(Outstanding& failed);
  void finish_pair(Pair& pair);
  void complete_get(Outstanding& done);
  void complete_fetch(Outstanding& done);
  bool check_counter(Outstanding& one);
  void forget(std::size_t index);
  std::string name(const Outstanding& one) const;

  std::uint64_t draw(std::uint64_t bound) { return stage_.random.below(bound); }
  bool percent(std::uint32_t share) { return draw(100) < share; }
  Window& window() { return stage_.window(rank_); }

  static constexpr std::size_t kCounters = 64;
  static constexpr std::size_t kCells = 64;

  Stage& stage_;
  int rank_;
  Buffers buffers_;
  std::vector<Outstanding> outstanding_;
  std::vector<std::uint64_t> signal_base_;  ///< by source: what was reset away from its add signal
  std::vector<std::uint32_t> free_counters_;
  std::array<std::uint64_t, kCounters> counter_values_{};
  std::vector<std::uint32_t> free_cells_;
  std::array<std::uint64_t, kCells> cells_{};
  std::vector<bool> said_goodbye_;  ///< by target
  std::vector<bool> lost_;          ///< by target: the library has said that it is gone
  std::uint64_t operations_ = 0;
  std::size_t next_asked_ = 0;
  std::int64_t asleep_until_ = 0;
  bool broken_ = false;  ///< the library refused an operation: reported once, nothing more is submitted
};

}  // namespace railyard::sim
