#include "telemetry/trace.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "base/log.hpp"
#include "telemetry/files.hpp"
#include "telemetry/process_text.hpp"

namespace railyard::telemetry {
namespace {

constexpr std::size_t kNamesAt = (sizeof(TraceHeader) + 63) / 64 * 64;
constexpr std::size_t kEntriesAt = kNamesAt + kMostTraceNames * sizeof(TraceName);
static_assert(kEntriesAt % 64 == 0);
constexpr std::uint64_t kLeastEntries = 64;

/// The trace of this process, guarded by the mutex of process files. Neither destroyed nor on the heap: see
/// ProcessFile.
struct OfProcess {
  std::weak_ptr<Trace> trace;
  pid_t process = 0;  ///< whose it is: not its parent's

  static OfProcess& instance() {
    alignas(OfProcess) static std::byte memory[sizeof(OfProcess)];
    static OfProcess* const only = new (memory) OfProcess;
    return *only;
  }
  std::shared_ptr<Trace> known() const { return process == ::getpid() ? trace.lock() : nullptr; }
};

std::int64_t nanoseconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

const char* to_string(TraceOperation operation) {
  static constexpr std::array<const char*, 7> kNames{"put", "get", "signal", "put_signal", "atomic", "send", "receive"};
  const auto index = static_cast<std::size_t>(operation);
  return index < kNames.size() ? kNames[index] : "operation";
}

const char* to_string(TraceSegment segment) {
  static constexpr std::array<const char*, 5> kNames{"frame", "write", "relaxed write", "read", "atomic"};
  const auto index = static_cast<std::size_t>(segment);
  return index < kNames.size() ? kNames[index] : "segment";
}

const char* event_name(TraceKind kind) {
  switch (kind) {
    case TraceKind::rail_down:
      return "rail down";
    case TraceKind::rail_up:
      return "rail up";
    case TraceKind::link_suspect:
      return "link suspect";
    case TraceKind::link_down:
      return "link down";
    case TraceKind::link_up:
      return "link up";
    case TraceKind::fenced:
      return "fenced by peer";
    case TraceKind::fence:
      return "fence";
    case TraceKind::replay:
      return "replay";
    case TraceKind::stall:
      return "stall";
    case TraceKind::peer_stalled:
      return "peer stalled";
    case TraceKind::peer_lost:
      return "peer lost";
    case TraceKind::peer_left:
      return "peer left";
    default:
      return "";
  }
}

std::shared_ptr<Trace> Trace::of_process(const Settings& settings) {
  if (settings.trace == "off") return nullptr;
  OfProcess& only = OfProcess::instance();
  {
    const std::scoped_lock hold(ProcessFile::mutex());
    if (auto known = only.known()) return known;
  }
  const std::string directory = directory_of(settings.trace);
  // What the user's own directory holds is the user's.
  if (directory == directory_of("on")) clean(directory, false, kTracePrefix);
  auto made = open(directory, settings.trace_bytes);
  const std::scoped_lock hold(ProcessFile::mutex());
  if (auto known = only.known()) {  // another thread was faster; ours goes
    if (made != nullptr) made->file_.remove();
    return known;
  }
  only.trace = made;
  only.process = ::getpid();
  return made;
}

std::shared_ptr<Trace> Trace::open(const std::string& directory, std::size_t bytes) {
  std::shared_ptr<Trace> trace(new Trace);
  trace->capacity_ = std::max<std::uint64_t>(bytes / sizeof(TraceEntry), kLeastEntries);
  const std::size_t whole = kEntriesAt + trace->capacity_ * sizeof(TraceEntry);
  if (auto created = trace->file_.create(directory, kTracePrefix, whole); !created) {
    log_warn("nothing is traced: {}: see RAILYARD_TRACE", created.error().message());
    return nullptr;
  }
  trace->fill(whole);
  return trace;
}

void Trace::fill(std::size_t bytes) {
  auto* const head = new (file_.data()) TraceHeader;
  head->version = kTraceVersion;
  head->entry_bytes = sizeof(TraceEntry);
  head->name_bytes = sizeof(TraceName);
  head->bytes = bytes;
  head->pid = static_cast<std::uint32_t>(::getpid());
  head->started = start_time(::getpid());
  head->opened_monotonic = nanoseconds_of(CLOCK_MONOTONIC);
  head->opened_wall = nanoseconds_of(CLOCK_REALTIME);
  head->capacity = capacity_;
  head->names_at = kNamesAt;
  head->entries_at = kEntriesAt;
  head->most_names = kMostTraceNames;
  put_text(head->host, host_name());
  put_text(head->command, command_name());
  entries_ = reinterpret_cast<TraceEntry*>(file_.data() + kEntriesAt);
  // Whoever sees it finds the rest.
  std::atomic_thread_fence(std::memory_order_release);
  head->magic = kTraceMagic;
}

void Trace::add_name(const TraceName& name, std::string_view text) {
  const std::uint32_t index = header().names.load(std::memory_order_relaxed);
  if (index == kMostTraceNames) return;  // its number will do
  auto* const entry = new (file_.data() + kNamesAt + index * sizeof(TraceName)) TraceName(name);
  put_text(entry->text, text);
  // Release: whoever sees it counted finds it whole.
  header().names.store(index + 1, std::memory_order_release);
}

std::uint16_t Trace::add_context(std::string_view name) {
  const std::scoped_lock hold(mutex_);
  const std::uint16_t number = contexts_++;
  add_name({.of = TraceName::context, .context_number = number}, name);
  return number;
}

void Trace::name_rail(std::uint16_t context, std::uint16_t rail, std::string_view name) {
  const std::scoped_lock hold(mutex_);
  add_name({.of = TraceName::rail, .context_number = context, .number = rail}, name);
}

void Trace::set_rank(int rank, int size) {
  header().rank.store(rank, std::memory_order_relaxed);
  header().size.store(size, std::memory_order_relaxed);
}

void Trace::record(const TraceRecord& record) {
  TraceHeader& head = header();
  // Acquire and release: the entry is not touched before it is claimed, so whoever copies entries and then finds that
  // `head` has not reached them again has copied them whole.
  const std::uint64_t number = head.head.fetch_add(1, std::memory_order_acq_rel);
  TraceEntry& place = entries_[number % capacity_];
  std::uint64_t before = place.stamp.load(std::memory_order_relaxed);
  // A thread that lost its core in the middle of an entry, for as long as the others took to come round.
  if (before == kBeingWritten ||
      !place.stamp.compare_exchange_strong(before, kBeingWritten, std::memory_order_acquire)) {
    head.dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  place.record = record;
  // Release: whoever sees the stamp sees the entry.
  place.stamp.store(number + 1, std::memory_order_release);
}

}  // namespace railyard::telemetry
