/// Commands: what kernels tell the proxy, through rings in host memory that both can reach.
///
/// A command is eight words of eight bytes. Each word's top bit is the phase of the ring's turn: 1 in the first turn
/// over the ring, 0 in the second, and so on. The words may arrive in any order; a command is whole when all eight have
/// this turn's phase, so it needs no fence and no flag of its own, and one that is torn is never taken.
///
///     word 0   what it is: see Command::pack
///     word 1   offset in the target's window
///     word 2   source address, or payload
///     word 3   bytes at the source, or payload
///     word 4   signal value
///     word 5   counter value
///     word 6   signal index (32 bits), counter index (30 bits)
///     word 7   payload
///
/// A get has its destination for a source. An atomic has its operand for a signal value and what it compares with for a
/// counter value; its operation and type (`atomic_code`) for a counter index and, where it fetches, the place of its
/// result for a signal index. The top bits that the phase displaces travel in word 0.
#pragma once

#include <cstddef>

#include "railyard/device/primitives.cuh"

namespace railyard::device {

/// What a command asks for, and what an error names.
enum class Operation : std::uint8_t {
  none,
  put,
  put_signal,
  put_counter,
  put_signal_counter,
  put_value,
  signal,
  fence,
  get,
  atomic,
  fetch_atomic,
  // Kernels do these by themselves; they appear in errors alone.
  wait_signal,
  wait_counter,
  wait,
  quiet,
  barrier,
};

enum class SignalOp : std::uint8_t { add, set };
/// The same as on the host.
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
enum class WordType : std::uint8_t { int32, uint32, int64, uint64, float32, float64 };

namespace detail {

inline constexpr unsigned kCommandWords = 8;
inline constexpr unsigned kCommandBytes = kCommandWords * 8;
/// Payload that travels inside a command: its source is free at once, and nobody reads device memory for it.
inline constexpr unsigned kInlineBytes = 24;
inline constexpr Word kPhase = Word{1} << 63;
inline constexpr unsigned kRankBits = 24;
inline constexpr Word kEveryRank = (Word{1} << kRankBits) - 1;
inline constexpr Word kMostCounters = Word{1} << 30;

/// What an atomic does, and to what.
RAILYARD_DEVICE Word atomic_code(AtomicOp op, WordType type) {
  return static_cast<Word>(op) | static_cast<Word>(type) << 8;
}

/// The phase of the turn that the command of this number belongs to. Zeroed memory holds no command.
RAILYARD_DEVICE Word phase_of(Word index, unsigned depth) { return (index / depth) % 2 == 0 ? kPhase : 0; }

struct Command {
  Operation operation = Operation::none;
  SignalOp signal_op = SignalOp::add;
  bool has_signal = false;
  bool has_counter = false;
  bool is_inline = false;
  std::uint8_t inline_bytes = 0;  ///< at most kInlineBytes; of the payload
  std::uint32_t rank = 0;         ///< kEveryRank: all (fence)
  std::uint64_t offset = 0;
  std::uint64_t source = 0;
  std::uint64_t bytes = 0;
  Word payload[3] = {0, 0, 0};
  std::uint64_t signal_index = 0;
  std::uint64_t signal_value = 0;
  std::uint64_t counter_index = 0;
  std::uint64_t counter_value = 0;

  /// The eight words, without their phase. Values that do not fit become others that do not fit in the window either.
  RAILYARD_DEVICE void pack(Word (&words)[kCommandWords]) const {
    words[1] = offset;
    words[2] = is_inline ? payload[0] : source;
    words[3] = is_inline ? payload[1] : bytes;
    words[4] = signal_value;
    words[5] = counter_value;
    words[6] = least(signal_index, 0xffffffffu) | least(counter_index, kMostCounters - 1) << 32;
    words[7] = is_inline ? payload[2] : 0;
    Word tops = 0;
    for (unsigned word = 1; word < kCommandWords; ++word) {
      tops |= (words[word] >> 63) << (word - 1);
      words[word] &= ~kPhase;
    }
    words[0] = static_cast<Word>(operation) | static_cast<Word>(signal_op) << 8 | Word{has_signal} << 10 |
               Word{has_counter} << 11 | Word{is_inline} << 12 | Word{inline_bytes} << 16 | tops << 24 |
               least(rank, static_cast<std::uint32_t>(kEveryRank)) << 32;
  }
  /// The reverse; nothing is checked.
  static RAILYARD_DEVICE Command unpack(const Word (&given)[kCommandWords]) {
    Word words[kCommandWords];
    for (unsigned word = 0; word < kCommandWords; ++word) words[word] = given[word] & ~kPhase;
    for (unsigned word = 1; word < kCommandWords; ++word) words[word] |= (words[0] >> (24 + word - 1) & 1) << 63;
    Command command;
    command.operation = static_cast<Operation>(words[0] & 0xff);
    command.signal_op = static_cast<SignalOp>(words[0] >> 8 & 3);
    command.has_signal = (words[0] >> 10 & 1) != 0;
    command.has_counter = (words[0] >> 11 & 1) != 0;
    command.is_inline = (words[0] >> 12 & 1) != 0;
    command.inline_bytes = static_cast<std::uint8_t>(words[0] >> 16 & 0xff);
    command.rank = static_cast<std::uint32_t>(words[0] >> 32 & kEveryRank);
    command.offset = words[1];
    if (command.is_inline) {
      command.payload[0] = words[2];
      command.payload[1] = words[3];
      command.payload[2] = words[7];
    } else {
      command.source = words[2];
      command.bytes = words[3];
    }
    command.signal_value = words[4];
    command.counter_value = words[5];
    command.signal_index = words[6] & 0xffffffffu;
    command.counter_index = words[6] >> 32 & (kMostCounters - 1);
    return command;
  }

 private:
  static RAILYARD_DEVICE Word least(Word a, Word b) { return a < b ? a : b; }
};

/// What the proxy tells of one ring; a line of its own, written by the proxy alone.
struct alignas(64) RingProgress {
  Word consumed;   ///< commands below this are taken: their slots are free
  Word completed;  ///< commands below this are complete at their targets
  Word unused[6];
};

/// Fetches of one ring that wait for their result at a time.
inline constexpr unsigned kMostFetches = 32;

/// What the producers of one ring share, in memory that is fast for them.
struct alignas(128) RingTail {
  Word tail;       ///< commands that have a slot
  Word consumed;   ///< what was seen of RingProgress last
  Word completed;  ///< the same
  Word unused[13];
  /// Who has the places for results. 0: nobody; kTaken: a caller that waits; else a caller gave up: the number of its
  /// command, plus one. Once that is complete nothing writes there any more.
  Word fetches[kMostFetches];
};

/// The first thing that went wrong. `code` is written last.
struct alignas(64) Report {
  Word code;  ///< 0: nothing; the proxy: a railyard::Status; a kernel: a device::Status
  Word operation;
  Word peer;     ///< plus one; 0: nobody in particular
  Word ring;     ///< which the command or the wait was on
  Word subject;  ///< number of the command; index of the signal or counter
  Word wanted;
  Word held;
  Word unused;
};

/// A peer's memory where a kernel can reach it; null: through the proxy.
struct alignas(16) Peer {
  /// Kernels add to a word that nobody else changes, and signals hold the sum: they cannot be set there.
  static constexpr std::uint32_t kAdds = 1;
  /// Memory of a GPU: copy engines are faster than a few threads from some size on.
  static constexpr std::uint32_t kDevice = 2;
  /// Atomics are done there, always: through the proxy they would not be atomic with those.
  static constexpr std::uint32_t kAtomics = 4;
  /// Memory of the GPU that this kernel runs on: all that reads it does so through the same cache.
  static constexpr std::uint32_t kSameDevice = 8;

  std::byte* data;
  std::uint64_t bytes;
  Word* signals;
  std::uint32_t signal_count;
  std::uint32_t flags;
};

/// Where a barrier stands. It stays there when its time runs out: the peers have been told already.
struct BarrierState {
  Word epoch;  ///< barriers entered so far
  Word inside;
  Word told;  ///< this round's peer knows that we are here
  Word round;
};

}  // namespace detail
}  // namespace railyard::device
