/// The trace file: one per process that is traced, by the conventions of the telemetry file (layout.hpp).
///
///     TraceHeader | names | entries
///
/// The entries are a ring: the newest ones are there, however long the process runs. Whoever records takes the next
/// place by adding to `head`, fills the entry and stores its stamp last; so a reader knows whole entries from others,
/// and from `head` how many there were.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace railyard::telemetry {

inline constexpr const char* kTracePrefix = "railyard.trace.";
inline constexpr std::array<char, 8> kTraceMagic{'R', 'Y', 'T', 'R', 'A', 'C', 'E', '\n'};
/// Changes with the structures below and with what their values mean.
inline constexpr std::uint32_t kTraceVersion = 1;
inline constexpr std::uint32_t kMostTraceNames = 512;

enum class TraceKind : std::uint8_t {
  submitted = 1,  ///< an operation: `detail` its TraceOperation, `id` its number in the flow's sequence
  completed,      ///< all of the flow's operations up to `id`
  slot_taken,     ///< an operation out of sequence: `id` its number among these
  slot_ended,     ///< `id`; `detail`: the FailureCause, 0: it has not failed
  direct,         ///< an operation past the engine, done in its call: `more` nanoseconds until `time`
  posted,         ///< a segment was handed to `rail`: `id` names it, `detail` its TraceSegment, `more` its operation
  left,           ///< the rail no longer holds it; `detail`: 1, delivered
  flow_ended,     ///< failed or closed: its operations end with it
  message_begun,  ///< a send or receive of a channel: `id` names it
  message_ended,  ///< `detail`: 1, it failed
  // What happens to rails, links and peers.
  rail_down,
  rail_up,
  link_suspect,
  link_down,     ///< `detail`: its LossCause; `bytes`: segments that wait for the fence
  link_up,       ///< `more`: nanoseconds that it was down
  fenced,        ///< the peer has shut the dead link out; `bytes`: segments to send again
  fence,         ///< we have shut out a link of the peer's
  replay,        ///< a segment goes out again
  stall,         ///< a wait takes longer than RAILYARD_STALL_MS; `more`: nanoseconds so far
  peer_stalled,  ///< silent, though its process lives
  peer_lost,
  peer_left,
};
inline constexpr TraceKind kLastTraceKind = TraceKind::peer_left;

enum class TraceOperation : std::uint8_t { put, get, signal, put_signal, atomic, send, receive };
const char* to_string(TraceOperation operation);
/// Frames and writes have a place in the sequence of their flow, the others have none.
enum class TraceSegment : std::uint8_t { frame, write, relaxed_write, read, atomic };
const char* to_string(TraceSegment segment);
/// What an event is called; empty: the kind is no event.
const char* event_name(TraceKind kind);

struct TraceHeader {
  std::array<char, 8> magic{};  ///< written last: a file without it is not whole
  std::uint32_t version = 0;
  std::uint32_t entry_bytes = 0;  ///< so that a later version may make entries longer
  std::uint64_t bytes = 0;        ///< of the whole file
  std::uint32_t pid = 0;
  std::uint32_t name_bytes = 0;
  std::uint64_t started = 0;              ///< the kernel's start time of the process, in ticks since boot
  std::int64_t opened_wall = 0;           ///< nanoseconds since 1970
  std::int64_t opened_monotonic = 0;      ///< CLOCK_MONOTONIC at the same moment: what the entries' times are
  std::uint64_t capacity = 0;             ///< entries that there is room for
  std::atomic<std::uint64_t> head{0};     ///< entries that were ever begun
  std::atomic<std::uint64_t> dropped{0};  ///< of them, those whose place was still being written
  std::atomic<std::int32_t> rank{-1};
  std::atomic<std::int32_t> size{0};
  std::uint32_t names_at = 0;  ///< offsets in bytes
  std::uint32_t entries_at = 0;
  std::uint32_t most_names = 0;
  std::atomic<std::uint32_t> names{0};  ///< in use: stored when the name is whole
  std::array<char, 64> host{};
  std::array<char, 64> command{};
};

/// What numbers in the entries are called.
struct TraceName {
  enum Of : std::uint16_t { context = 0, rail = 1 };
  std::uint16_t of = 0;
  std::uint16_t context_number = 0;
  std::uint16_t number = 0;
  std::uint16_t reserved = 0;
  std::array<char, 88> text{};
};

/// What is recorded at once. Which fields mean something depends on the kind.
struct TraceRecord {
  std::int64_t time = 0;  ///< the engine's clock: CLOCK_MONOTONIC
  TraceKind kind{};
  std::uint8_t detail = 0;
  std::uint16_t context = 0;
  std::uint16_t rail = 0;
  std::uint16_t flow = 0;
  std::int32_t peer = -1;
  std::uint32_t sequence = 0;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::uint64_t more = 0;
  std::uint64_t submitter = 0;  ///< of an operation: its window's number plus one; 0: it is of none
};

struct TraceEntry {
  std::atomic<std::uint64_t> stamp{0};  ///< its number plus one, stored last; kBeingWritten: it is not whole
  TraceRecord record;
};
inline constexpr std::uint64_t kBeingWritten = UINT64_MAX;
/// In `rail` of what concerns none.
inline constexpr std::uint16_t kNoTraceRail = UINT16_MAX;

static_assert(sizeof(TraceName) == 96 && sizeof(TraceEntry) == 64);

}  // namespace railyard::telemetry
