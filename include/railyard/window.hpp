/// Window: memory that every rank of a world exposes, with its signals and counters.
///
/// Ordering. Ordered operations to one rank (the default) form one sequence over all rails: a signal or an atomic takes
/// effect at its target after every earlier ordered put to that target is visible there, exactly once. Puts among
/// themselves and gets may overtake each other; `fence` stops that. A relaxed put is outside the sequence until the
/// next `fence` or `quiet`.
///
/// Losses. A rail that fails costs bandwidth, no operation. A rank that is gone fails what was under way to it and all
/// that comes later with `peer_lost`; the window carries on with the others.
///
/// The same host. A window that Railyard allocated is used by loads and stores where its owner is on this host
/// (docs/shm.md): such operations are complete when their call returns; the rest of this page holds for them too.
///
/// Threads. Any number of threads may use one window at the same time; `close` and the end of the window come after
/// their last calls.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "railyard/deadline.hpp"
#include "railyard/operations.hpp"
#include "railyard/result.hpp"
#include "railyard/world.hpp"

namespace railyard {

struct WindowOptions {
  std::size_t signals = 64;   ///< 64-bit words that peers signal, all zero at the start
  std::size_t counters = 64;  ///< 64-bit words that this rank's own operations advance
  bool per_rank = false;      ///< ranks may bring different sizes; otherwise a difference is an error
  /// `allocate`: in the memory of this GPU, signals and counters too; -1: in host memory. Kernels of ranks on this host
  /// store there by themselves (docs/device.md). Each rank chooses for itself. Not for `adopt`.
  int device = -1;
  /// Place for the signals; by default the window's own. May be memory of a GPU, for kernels that wait for them: then
  /// only Railyard writes it, and the host's calls see a value once it is there (docs/device.md). Likewise counters.
  std::span<std::uint64_t> signal_memory{};
  std::span<std::uint64_t> counter_memory{};  ///< place for the counters; by default the window's own
  /// Atomics are done by the targets' NICs: add, increment, compare_swap and fetch of 8 bytes, outside the sequence
  /// (like a get; `fence` orders them), at most once: one whose rail is lost fails, and may have happened. They are
  /// atomic against each other alone. The same on all ranks; needs rails that can (verbs), also to ranks on this host
  /// (RAILYARD_SHARED_MEMORY=off).
  bool native_atomics = false;
};

namespace window_detail {
class WindowState;
class WindowAccess;
}  // namespace window_detail
class WindowAssembly;

/// Movable handle. Making and closing one is collective.
class Window {
 public:
  /// Makes a window over zeroed memory that it owns. Collective; `bytes` must be equal on all ranks unless per_rank.
  static Result<Window> allocate(World& world, std::size_t bytes, const WindowOptions& options = {});
  /// Makes a window over memory that the caller brings and keeps valid until the window is closed. Collective.
  static Result<Window> adopt(World& world, std::span<std::byte> memory, const WindowOptions& options = {});

  Window(Window&&) noexcept;
  Window& operator=(Window&&) noexcept;
  /// Closes without waiting for peers if `close` was not called.
  ~Window();
  /// Completes what this rank has outstanding, waits for all ranks, then takes the window down. Collective.
  Result<void> close(Deadline deadline = {});
  /// Closes any number of windows under one deadline: their ranks wait for each other once. Collective: all ranks of a
  /// world give the same windows of it, and whoever is in several worlds gives these in the same order. If a world
  /// fails (`timeout`, `peer_lost`) its windows stay open, those of the others are closed all the same, and the error
  /// is the first one's.
  static Result<void> close_all(std::span<Window* const> windows, Deadline deadline = {});
  bool is_open() const noexcept;

  std::span<std::byte> local() const noexcept;
  /// Memory that the window allocated stays mapped as long as this is held, beyond `close` too; no peer reaches it
  /// then. For bindings whose users hold views of it.
  std::shared_ptr<const void> keep_local() const noexcept;
  std::size_t bytes(int rank) const noexcept;
  std::size_t signals(int rank) const noexcept;

  /// Copies `bytes` from `source` to `offset` in `rank`'s window. Non-blocking; `source` must stay unchanged until
  /// local completion. With every queue full it waits for room, up to the default deadline.
  Result<Ticket> put(int rank, std::size_t offset, const void* source, std::size_t bytes, Order order = Order::ordered);
  /// Puts a value of 1, 2, 4 or 8 bytes (any width from 1 to 8 in the second form). The value is taken at the call.
  template <typename T>
  Result<Ticket> put_value(int rank, std::size_t offset, T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    return put_value(rank, offset, &value, sizeof(T));
  }
  Result<Ticket> put_value(int rank, std::size_t offset, const void* value, std::size_t bytes);
  /// Copies `bytes` at `offset` of `rank`'s window to `destination`. Complete when the bytes are there.
  Result<Ticket> get(int rank, std::size_t offset, void* destination, std::size_t bytes);

  /// A put and, after it, a signal. Zero bytes: a signal alone.
  Result<Ticket> put_signal(int rank, std::size_t offset, const void* source, std::size_t bytes, SignalUpdate signal);
  Result<Ticket> put_counter(int rank, std::size_t offset, const void* source, std::size_t bytes,
                             CounterUpdate counter);
  Result<Ticket> put_signal_counter(int rank, std::size_t offset, const void* source, std::size_t bytes,
                                    SignalUpdate signal, CounterUpdate counter);
  Result<Ticket> signal(int rank, SignalUpdate signal);

  /// Many blocks as one operation of the sequence, with one ticket; small blocks travel together. All of them are
  /// checked before the first byte moves. In which order they land is not said: where blocks of one vector overlap,
  /// either may win. Empty blocks and empty lists are allowed. Of blocks that fit the small-put limit
  /// (RAILYARD_INLINE_BYTES) alone the sources are free at once; else at local completion. The list itself is free when
  /// the call returns.
  ///
  /// A vector that fills a quarter of a queue and more (256 large blocks, some 12,000 of 64 bytes) is handed over in
  /// parts, the last one when the others are complete: the call waits for them, up to the default deadline. If that
  /// passes (`timeout`) some blocks may have been moved, never the signal; the same call may be made again. After an
  /// error of such a call its memory may still be in use, until `quiet` for that rank has succeeded or the window ends.
  Result<Ticket> put_vector(int rank, std::span<const PutBlock> blocks);
  /// The same and, after all of it, a signal.
  Result<Ticket> put_vector_signal(int rank, std::span<const PutBlock> blocks, SignalUpdate signal);
  /// Many gets as one, complete when the bytes of all blocks are there. The same in parts for more than 256.
  Result<Ticket> get_vector(int rank, std::span<const GetBlock> blocks);
  /// A vector whose blocks follow each other at equal distances; no list is made.
  Result<Ticket> put_strided(int rank, std::size_t offset, const void* source, const Strides& blocks);
  Result<Ticket> put_strided_signal(int rank, std::size_t offset, const void* source, const Strides& blocks,
                                    SignalUpdate signal);
  Result<Ticket> get_strided(int rank, std::size_t offset, void* destination, const Strides& blocks);

  /// Changes the word of type T (32- or 64-bit integer, float or double, aligned) at `offset` in `rank`'s window.
  /// Atomic against all other atomics of the window and against what its owner does by std::atomic_ref (not so with
  /// native_atomics). In memory of a GPU: against all other atomics of the window alone, not against kernels or puts.
  ///
  /// Float and double. `add` rounds as the processor that applies it does: sums depend on the order of arrivals.
  /// `increment` adds 1. `min` and `max`: a NaN gives way to a number (two NaNs: the word stays as it is) and -0.0 is
  /// less than +0.0, so that the order of arrivals does not matter. `compare_swap` compares bits: +0.0 is not -0.0, and
  /// a NaN equals itself. There are no bit_and, bit_or and bit_xor.
  template <typename T>
  Result<Ticket> atomic(int rank, std::size_t offset, AtomicOp op, T operand, T compare = {}) {
    return atomic_word(rank, offset, op, word_type<T>(), word_bits(operand), word_bits(compare), nullptr);
  }
  /// The same, and stores what the word held before to `*before`, host memory that must stay valid until completion.
  template <typename T>
  Result<Ticket> fetch_atomic(int rank, std::size_t offset, AtomicOp op, T* before, T operand = {}, T compare = {}) {
    return atomic_word(rank, offset, op, word_type<T>(), word_bits(operand), word_bits(compare), before);
  }
  /// The same with the type as a value. Operand and compare are the word's bits, from bit 0 on; `before` is null or
  /// holds a word.
  Result<Ticket> atomic_word(int rank, std::size_t offset, AtomicOp op, WordType type, std::uint64_t operand,
                             std::uint64_t compare, void* before);
  /// The same for an unsigned integer of `width` bytes, 4 or 8.
  Result<Ticket> atomic_word(int rank, std::size_t offset, AtomicOp op, std::size_t width, std::uint64_t operand,
                             std::uint64_t compare, void* before);

  /// This rank's signal. No lock, no system call. What preceded the signal at its sender is visible after this.
  std::uint64_t read_signal(std::size_t index) const noexcept;
  /// Sets this rank's signal to zero, in turn with what the engine applies.
  Result<void> reset_signal(std::size_t index);
  /// Waits until the signal compares so with `value`; returns what it held then. Ends with `peer_lost` when nobody is
  /// left who could make it so: `from`, or without it every other rank (SignalCondition::from).
  Result<std::uint64_t> wait_signal(std::size_t index, Comparison comparison, std::uint64_t value,
                                    Deadline deadline = {}, int from = SignalCondition::kAnyRank);
  /// Waits until one of the conditions is met. Ends with `peer_lost` when nobody is left who could meet any.
  Result<SignalMet> wait_any_signal(std::span<const SignalCondition> conditions, Deadline deadline = {});
  /// Waits until all conditions are met at once. Ends with `peer_lost` when one cannot be met any more.
  Result<void> wait_all_signals(std::span<const SignalCondition> conditions, Deadline deadline = {});

  std::uint64_t read_counter(std::size_t index) const noexcept;
  Result<void> reset_counter(std::size_t index);
  /// Waits until the counter is at least `value`; returns what it held then. A counter says that the source is free,
  /// not that the bytes arrived: a small put advances it at the call, even if its target refuses it later. An operation
  /// that failed before its source was free does not advance it; its error is returned here.
  Result<std::uint64_t> wait_counter(std::size_t index, std::uint64_t value, Deadline deadline = {});

  /// Whether the operation is complete. Makes progress. An operation that failed returns its error.
  Result<bool> test(Ticket ticket, Completion completion = Completion::remote);
  /// The same without progress: for event loops, between `World::arm` and their sleep, which a `test` would end.
  Result<bool> peek(Ticket ticket, Completion completion = Completion::remote) const;
  Result<void> wait(Ticket ticket, Completion completion = Completion::remote, Deadline deadline = {});

  /// Every later operation to `rank` takes effect after every earlier one, relaxed ones too. Does not wait.
  Result<void> fence(int rank);
  Result<void> fence();
  /// Waits until every operation to `rank` (or to all) is complete at its target. Free when nothing is outstanding.
  /// The one for all ranks tells once of each rank that was lost with something under way, then goes on without it.
  Result<void> quiet(int rank, Deadline deadline = {});
  Result<void> quiet(Deadline deadline = {});
  /// Completes this rank's operations, then waits until every rank has entered. Fails where one is lost. After a
  /// `timeout` this rank is still inside: the next call goes on with the same barrier.
  Result<void> barrier(Deadline deadline = {});

 private:
  template <typename T>
  static constexpr WordType word_type() {
    constexpr bool kFloat = std::is_same_v<T, float> || std::is_same_v<T, double>;
    static_assert((std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8)) || kFloat);
    if constexpr (kFloat) {
      return sizeof(T) == 4 ? WordType::float32 : WordType::float64;
    } else if constexpr (sizeof(T) == 4) {
      return std::is_signed_v<T> ? WordType::int32 : WordType::uint32;
    } else {
      return std::is_signed_v<T> ? WordType::int64 : WordType::uint64;
    }
  }
  template <typename T>
  static constexpr std::uint64_t word_bits(T value) {
    return std::bit_cast<std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>(value);
  }

  friend class WindowAssembly;
  friend class window_detail::WindowAccess;
  explicit Window(std::unique_ptr<window_detail::WindowState> state);
  std::unique_ptr<window_detail::WindowState> state_;
};

}  // namespace railyard
