/// What operations on a window are made of: orders, atomics, conditions, blocks, tickets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace railyard {

enum class Order : std::uint8_t { ordered, relaxed };
enum class Comparison : std::uint8_t { equal, not_equal, less, less_equal, greater, greater_equal };
enum class AtomicOp : std::uint8_t {
  add,
  increment,
  bit_and,
  bit_or,
  bit_xor,
  set,
  swap,
  compare_swap,
  fetch,
  min,
  max,
};
/// What an atomic takes its word for.
enum class WordType : std::uint8_t { int32, uint32, int64, uint64, float32, float64 };
enum class SignalOp : std::uint8_t { add, set };
/// Which completion to wait for: the source may be reused, or the bytes are visible at the target.
enum class Completion : std::uint8_t { local, remote };

/// A change to one signal of the target.
struct SignalUpdate {
  std::size_t index = 0;
  std::uint64_t value = 1;
  SignalOp op = SignalOp::add;
};

/// A change to one counter of the caller, made when the operation is done with its source.
struct CounterUpdate {
  std::size_t index = 0;
  std::uint64_t value = 1;
};

/// A signal of this rank's and what it is waited for to be.
struct SignalCondition {
  static constexpr int kAnyRank = -1;

  std::size_t index = 0;
  Comparison comparison = Comparison::greater_equal;
  std::uint64_t value = 1;
  /// Who signals: the wait ends with `peer_lost` as soon as that rank is gone and the condition cannot come true. This
  /// rank itself: another of its threads. kAnyRank: when all other ranks are gone.
  int from = kAnyRank;
};

/// A signal whose condition was met.
struct SignalMet {
  std::size_t condition = 0;  ///< which of those waited for
  std::uint64_t held = 0;     ///< what the signal held then
};

/// One block of a vector put: `bytes` from `source` go to `offset` of the target's window.
struct PutBlock {
  const void* source = nullptr;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
/// One block of a vector get.
struct GetBlock {
  void* destination = nullptr;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
/// `count` blocks of `bytes` each: a face of a grid, rows of a matrix. The first is where the call says, each further
/// one a stride (in bytes) behind the one before, here and there.
struct Strides {
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::size_t local = 0;
  std::size_t remote = 0;
};

/// Names one operation. Copyable; holding it costs nothing; it stays valid as long as its window.
struct Ticket {
  std::uint64_t number = 0;  ///< 0: complete from the start
  std::int32_t peer = -1;
  std::uint32_t slot = 0;  ///< operations that complete out of sequence (get, fetch, relaxed): their slot, plus one
};

}  // namespace railyard
