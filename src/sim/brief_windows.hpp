/// Windows that end while others use them, and operations that their targets must refuse.
///
/// Every operation has memory or a signal of its own at its target. When a part ends, what it holds is kept aside and
/// its memory is used for something else at once. So an operation that is reported as done can be checked, and whatever
/// lands afterwards is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "memory/region.hpp"
#include "railyard/window.hpp"
#include "sim/pattern.hpp"
#include "transport/engine.hpp"

namespace railyard::sim {

class Stage;

class BriefWindows {
 public:
  /// Opens what the plan's kinds of fault call for.
  static Result<std::unique_ptr<BriefWindows>> open(Stage& stage);

  /// The rank may begin something, or end its part.
  void turn(int rank);
  /// The rank asks after what it has begun.
  void look(int rank);
  bool idle(int rank) const { return under_way_[static_cast<std::size_t>(rank)] == 0; }
  void report_stuck(int rank);
  /// After all is over: nobody has touched what was taken back.
  void finish(int rank);
  /// Before the worlds go.
  void close();

 private:
  enum class Kind : std::uint8_t { put, relaxed, put_signal, signal, atomic, fetch, get, kinds };
  enum class Forged : std::uint8_t {
    no_window,
    out_of_range,
    no_signal,
    signal_code,
    misaligned,
    atomic_code,
    atomic_width,
    fetch_misaligned,
    write_no_key,
    write_out_of_range,
    read_no_key,
    good_and_bad,
    kinds
  };
  struct Part {
    std::vector<std::byte> memory;
    std::vector<std::uint64_t> signals;
    std::vector<std::byte> left;  ///< what it held when it ended
    std::vector<std::uint64_t> left_signals;
    std::size_t used = 0;  ///< of its memory: every operation has its own
    std::size_t used_signals = 0;
    std::optional<Window> window;
    bool ended = false;
    // For what must be refused: memory that the engine exposes without a window.
    std::vector<std::byte> bare;
    std::vector<std::uint64_t> bare_signals;
    std::uint32_t exposed_region = 0;
    std::shared_ptr<memory::Region> region;
    std::vector<transport::RemoteKey> keys;  ///< the engine refers to them
    std::vector<transport::RemoteKey> wrong_keys;
  };
  struct Begun {
    Kind kind = Kind::put;
    Forged forged = Forged::kinds;  ///< `kinds`: it is honest
    int source = 0;
    int target = 0;
    Ticket ticket;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::size_t signal = SIZE_MAX;
    std::uint64_t value = 0;
    Pattern pattern;
    std::unique_ptr<std::byte[]> local;
    bool over = false;
  };

  explicit BriefWindows(Stage& stage) : stage_(stage) {}
  Result<void> open_windows();
  Result<void> expose();
  void begin(int rank, int target);
  void forge(int rank, int target);
  bool forge_on(transport::Engine& engine, transport::Flow& flow, Begun& begun);
  void end_part(int rank);
  void take_answer(Begun& begun, const Result<bool>& done);
  bool applied(const Begun& begun) const;
  std::string name(const Begun& begun) const;
  Part& part(int rank) { return parts_[static_cast<std::size_t>(rank)]; }
  const Part& part(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }

  Stage& stage_;
  std::vector<Part> parts_;
  std::vector<Begun> begun_;
  std::vector<std::size_t> under_way_;  ///< by rank
  std::uint64_t count_ = 0;
};

}  // namespace railyard::sim
