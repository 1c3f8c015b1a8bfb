/// Windows in kernels: put, signal and wait without the host's help. Open a DeviceProxy on a window (device.hpp), pass
/// its `handle()` by value into a kernel, and call:
///
///     __global__ void send(railyard::device::Window window, const float* rows, std::size_t bytes) {
///       window.put_signal<railyard::device::Scope::block>(1, 0, rows, bytes, {0});
///       if (window.wait_signal<railyard::device::Scope::block>(1, Comparison::greater_equal, 1) != Status::ok) return;
///     }
///
/// Ordering. A block posts to one ring (its linear number modulo the rings), whatever the scope of its calls.
/// Operations of one ring to one rank form one sequence, as those of a host thread do (window.hpp): a signal takes
/// effect after every earlier put of that ring to that rank, on whatever rail. "Earlier" is program order; between
/// threads of a block, whatever synchronises them: after a block barrier one thread's signal covers the puts of all.
/// Operations of different rings have no order, unless the first is complete (`wait`, `quiet`) before the second is
/// posted.
///
/// Sources. What the caller's group has written before a call is what is sent. A source must stay unchanged until its
/// operation is complete (`wait`), its counter has advanced or, up to `Window::kInlineBytes`, the call has returned.
///
/// Failure. Every wait has a budget and watches the proxy. The first error or time-out is kept for the host
/// (`DeviceProxy::status`), the call returns it, and nothing traps. After an error of the proxy nothing more is sent: a
/// signal must not follow a put that failed. So long as nothing has failed, a time-out harms nobody: wait again.
#pragma once

#include "railyard/device/command.hpp"

namespace railyard::device {

enum class Status : std::uint8_t {
  ok,
  timeout,    ///< the budget is spent
  error,      ///< the proxy met an error: `DeviceProxy::status` has it
  peer_lost,  ///< the rank that was waited for is gone
  invalid,    ///< the call makes no sense
};

/// The same six as on the host.
enum class Comparison : std::uint8_t { equal, not_equal, less, less_equal, greater, greater_equal };

struct SignalUpdate {
  std::uint64_t index = 0;
  std::uint64_t value = 1;
  SignalOp op = SignalOp::add;
};

struct CounterUpdate {
  std::uint64_t index = 0;
  std::uint64_t value = 1;
};

/// Names one operation. `status`: whether it was posted at all.
struct Ticket {
  static constexpr unsigned kRingShift = 48;
  static constexpr unsigned kStatusShift = 60;
  std::uint64_t word = 0;  ///< number plus one (48 bits; 0: complete from the start), ring (12), status (4)

  static RAILYARD_DEVICE Ticket failed(Status status) {
    Ticket ticket;
    ticket.word = static_cast<std::uint64_t>(status) << kStatusShift;
    return ticket;
  }
  static RAILYARD_DEVICE Ticket of(std::uint32_t ring, std::uint64_t index) {
    Ticket ticket;
    ticket.word = static_cast<std::uint64_t>(ring) << kRingShift | (index + 1);
    return ticket;
  }
  RAILYARD_DEVICE Status status() const { return static_cast<Status>(word >> kStatusShift); }
  RAILYARD_DEVICE bool ok() const { return status() == Status::ok; }
  RAILYARD_DEVICE std::uint32_t ring() const { return static_cast<std::uint32_t>(word >> kRingShift & 0xfff); }
  RAILYARD_DEVICE std::uint64_t number() const { return word & ((std::uint64_t{1} << kRingShift) - 1); }
};

namespace detail {

/// Everything a kernel knows of a window. Filled in by the DeviceProxy.
struct Handle {
  static constexpr std::uint32_t kClose = 8;
  Word* commands = nullptr;  ///< ring by ring
  const RingProgress* progress = nullptr;
  RingTail* tails = nullptr;
  Word* attention = nullptr;      ///< a line for each ring: somebody waits
  Word* posted = nullptr;         ///< ring by ring, for each rank: the last command to it, plus one
  const Peer* peers = nullptr;    ///< by rank
  const Word* lost = nullptr;     ///< by rank: not 0: gone. Then one more: how many
  const Report* error = nullptr;  ///< the proxy's
  Report* failure = nullptr;      ///< the kernels'
  Word* failure_claim = nullptr;  ///< whose it is: the first one's
  BarrierState* barriers = nullptr;
  std::byte* local = nullptr;
  std::uint64_t bytes = 0;
  const Word* signals = nullptr;
  const Word* signal_adds = nullptr;  ///< what kernels add to, if anything: signals are the sum
  Word* counters = nullptr;
  Word* counter_adds = nullptr;   ///< the same
  const Word* fetched = nullptr;  ///< ring by ring: results of fetches
  std::uint64_t signal_count = 0;
  std::uint64_t counter_count = 0;
  std::uint64_t budget = 0;        ///< nanoseconds
  std::uint64_t direct_bytes = 0;  ///< that a thread copies into memory of a peer's GPU; more is the proxy's
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t rings = 0;
  std::uint32_t depth = 0;
  std::uint32_t barrier_count = 0;
  std::uint32_t barrier_rounds = 0;
  std::uint32_t barrier_signal = 0;   ///< the first of them
  std::uint32_t ring = kRingByBlock;  ///< of this copy
  bool adds_counters = false;         ///< kernels may add to counters: their adds and the host's are atomic together

  /// The peers from `first_close` on once more, as far as there is room: an argument of a kernel is at hand, what is
  /// in `peers` a trip to memory away.
  std::uint32_t first_close = 0;
  Peer close[kClose] = {};

  static constexpr std::uint32_t kRingByBlock = ~std::uint32_t{0};
};

}  // namespace detail

/// A window, in a kernel. Copy it freely; it is valid until its DeviceProxy is closed. Templates: the group that makes
/// the call together.
class Window {
 public:
  static constexpr unsigned kInlineBytes = detail::kInlineBytes;
  static constexpr int kAnyRank = -1;

  Window() = default;
  explicit Window(const detail::Handle& handle) : handle_(handle) {}
  const detail::Handle& handle() const { return handle_; }

  /// The same window with another budget for each wait.
  RAILYARD_DEVICE Window with_budget(std::uint64_t nanoseconds) const {
    Window copy = *this;
    copy.handle_.budget = nanoseconds;
    return copy;
  }
  /// The same window on a ring of the caller's choice, whichever block it is called from.
  RAILYARD_DEVICE Window on_ring(std::uint32_t ring) const {
    Window copy = *this;
    copy.handle_.ring = ring % handle_.rings;
    return copy;
  }

  RAILYARD_DEVICE int rank() const { return static_cast<int>(handle_.rank); }
  RAILYARD_DEVICE int size() const { return static_cast<int>(handle_.size); }
  RAILYARD_DEVICE std::uint32_t rings() const { return handle_.rings; }
  /// This rank's part of the window.
  RAILYARD_DEVICE std::byte* local() const { return handle_.local; }
  RAILYARD_DEVICE std::uint64_t bytes() const { return handle_.bytes; }

  /// Copies `bytes` from `source` to `offset` in `rank`'s window. Waits only for room in the ring.
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Ticket put(int rank, std::uint64_t offset, const void* source, std::uint64_t bytes) const;
  /// A put and, after it, a signal. Zero bytes: a signal alone.
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Ticket put_signal(int rank, std::uint64_t offset, const void* source, std::uint64_t bytes,
                                    SignalUpdate signal) const;
  /// A put and a counter of this rank's, which advances when the source is free.
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Ticket put_counter(int rank, std::uint64_t offset, const void* source, std::uint64_t bytes,
                                     CounterUpdate counter) const;
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Ticket put_signal_counter(int rank, std::uint64_t offset, const void* source, std::uint64_t bytes,
                                            SignalUpdate signal, CounterUpdate counter) const;
  /// Puts the value itself, of at most 8 bytes.
  template <Scope scope = Scope::thread, typename T>
  RAILYARD_DEVICE Ticket put_value(int rank, std::uint64_t offset, T value) const;
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Ticket signal(int rank, SignalUpdate signal) const;

  /// Copies `bytes` at `offset` of `rank`'s window to `destination`. There when it is complete (`wait`, `quiet`).
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Ticket get(int rank, std::uint64_t offset, void* destination, std::uint64_t bytes) const;
  /// Changes the word of type T (32- or 64-bit integer, float or double, aligned) at `offset` in `rank`'s window, as on
  /// the host (window.hpp): once, whatever the size of the group, after every earlier put of the ring to that rank.
  template <Scope scope = Scope::thread, typename T>
  RAILYARD_DEVICE Ticket atomic(int rank, std::uint64_t offset, AtomicOp op, T operand, T compare = {}) const;
  /// The same, and waits for what the word held before: `*before` of every thread of the group.
  template <Scope scope = Scope::thread, typename T>
  RAILYARD_DEVICE Status fetch_atomic(int rank, std::uint64_t offset, AtomicOp op, T* before, T operand = {},
                                      T compare = {}) const;

  /// This rank's signal. What preceded the signal at its sender is visible after this.
  RAILYARD_DEVICE std::uint64_t read_signal(std::uint64_t index) const;
  /// Waits until this rank's signal compares so with `value`; `held`: what it held then. `from`: who signals; the wait
  /// ends with `peer_lost` once that rank is known to be gone.
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Status wait_signal(std::uint64_t index, Comparison comparison, std::uint64_t value,
                                     int from = kAnyRank, std::uint64_t* held = nullptr) const;
  RAILYARD_DEVICE std::uint64_t read_counter(std::uint64_t index) const;
  /// Waits until this rank's counter is at least `value`.
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Status wait_counter(std::uint64_t index, std::uint64_t value, std::uint64_t* held = nullptr) const;

  /// Waits until the operation, and all before it in its ring, is complete at its target.
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Status wait(Ticket ticket) const;
  /// Later operations of this ring to `rank` (or to any) take effect after all earlier ones. Does not wait.
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Status fence(int rank = kAnyRank) const;
  /// Waits until every operation of this ring to `rank` (or to any) is complete. Free when nothing is outstanding.
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Status quiet(int rank = kAnyRank) const;
  /// Completes this ring's operations, then waits until every rank has entered (DeviceOptions::barriers). One group of
  /// a rank at a time for each `id`. After a `timeout` this rank is still inside: the next call goes on.
  template <Scope scope = Scope::thread>
  RAILYARD_DEVICE Status barrier(std::uint32_t id = 0) const;

 private:
  using Word = detail::Word;
  struct Patience;

  RAILYARD_DEVICE std::uint32_t my_ring() const;
  RAILYARD_DEVICE Status reserve(std::uint32_t ring, unsigned slots, Operation operation, int peer, Word& first) const;
  RAILYARD_DEVICE Ticket post(const detail::Command& command, int rank) const;
  RAILYARD_DEVICE bool has_rank(int rank) const { return static_cast<std::uint32_t>(rank) < handle_.size; }
  RAILYARD_DEVICE Word last_posted(std::uint32_t ring, int rank) const;
  RAILYARD_DEVICE Word completed(std::uint32_t ring) const;
  RAILYARD_DEVICE bool is_complete(std::uint32_t ring, Word number) const;
  RAILYARD_DEVICE detail::Peer peer_of(int rank) const;
  RAILYARD_DEVICE bool may_touch(const detail::Command& command, const detail::Peer& peer, const void* source,
                                 unsigned threads) const;
  RAILYARD_DEVICE Ticket post_payload(detail::Command command, int rank, const void* source, const Word* word) const;
  RAILYARD_DEVICE Ticket finish_direct(const detail::Command& command, const detail::Peer& peer) const;
  template <Scope scope>
  RAILYARD_DEVICE Status change_word(int rank, std::uint64_t offset, AtomicOp op, WordType type, Word operand,
                                     Word compare, Word* before, Ticket& ticket) const;
  RAILYARD_DEVICE Status touch_word(const detail::Peer& peer, const detail::Command& command, AtomicOp op,
                                    WordType type, Word& before) const;
  RAILYARD_DEVICE Status await_fetched(const detail::Command& command, Word& before) const;
  template <Scope scope>
  RAILYARD_DEVICE Ticket submit(detail::Command command, int rank, const void* source, std::uint64_t bytes) const;
  RAILYARD_DEVICE Status await_number(std::uint32_t ring, Word number, Operation operation, int peer) const;
  RAILYARD_DEVICE Status await_signal(Word index, Comparison comparison, Word value, int from, Operation operation,
                                      Word& held) const;
  RAILYARD_DEVICE Status run_barrier(std::uint32_t id) const;

  detail::Handle handle_;
};

}  // namespace railyard::device

#include "railyard/device/atomics.cuh"
