#include "base/log.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "base/log_line.hpp"
#include "railyard/settings.hpp"

namespace railyard {

namespace log_detail {

// Relaxed everywhere: the level publishes nothing but itself.
std::atomic<LogLevel> level{LogLevel::warn};

namespace {

std::atomic<int> rank{-1};
std::atomic<LogFormat> format{LogFormat::text};

struct Sink {
  std::mutex mutex;
  LogSink sink;
  RepeatFold fold;
};

// Never destroyed, so that a thread which logs while the process ends still finds it. In static memory: a plugin that
// is loaded and unloaded again and again leaves nothing behind.
Sink& shared_sink() {
  alignas(Sink) static std::byte room[sizeof(Sink)];
  static Sink* const instance = new (room) Sink;
  return *instance;
}

void write_to_stderr(std::string line) {
  line += '\n';
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a closed stderr is no reason to fail
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

namespace {

const std::string& host_name() {
  static const std::string name = [] {
    std::array<char, 256> host{};
    return gethostname(host.data(), host.size() - 1) == 0 ? std::string(host.data()) : std::string("unknown-host");
  }();
  return name;
}

void write_now(const Sink& sink, const Message& message) {
  const int own_rank = rank.load(std::memory_order_relaxed);
  if (sink.sink) return sink.sink(message.level, text_line(message, own_rank));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  const Origin origin{host_name(), static_cast<int>(getpid()), own_rank};
  write_to_stderr(format.load(std::memory_order_relaxed) == LogFormat::json ? json_line(message, origin, unix_ns)
                                                                            : stamped_line(message, origin, unix_ns));
}

/// What was folded last is told when the process ends, unless to a sink: what that uses may be gone already.
struct AtEnd {
  ~AtEnd() {
    Sink& sink = shared_sink();
    const std::lock_guard lock(sink.mutex);
    for (const Message& message : sink.fold.flush()) {
      if (!sink.sink) write_now(sink, message);
    }
    // Not assigned: strings would keep their memory.
    std::destroy_at(&sink.fold);
    std::construct_at(&sink.fold);
  }
};

}  // namespace

void flush() {
  Sink& sink = shared_sink();
  const std::lock_guard lock(sink.mutex);
  for (const Message& message : sink.fold.flush()) write_now(sink, message);
}

void write(LogLevel level, std::string message, LogRail rail) {
  static const AtEnd at_end;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  Sink& sink = shared_sink();
  const std::lock_guard lock(sink.mutex);
  for (const Message& due : sink.fold.take({level, rail.number, std::move(rail.device), std::move(message), 0},
                                           std::chrono::duration_cast<std::chrono::nanoseconds>(now).count())) {
    write_now(sink, due);
  }
}

}  // namespace log_detail

Result<LogLevel> parse_log_level(std::string_view name) {
  if (name == "error") return LogLevel::error;
  if (name == "warn") return LogLevel::warn;
  if (name == "info") return LogLevel::info;
  if (name == "debug") return LogLevel::debug;
  return Error(Status::invalid, fmt::format("no log level '{}': use error, warn, info or debug", name));
}

void set_log_level(LogLevel level) { log_detail::level.store(level, std::memory_order_relaxed); }

LogLevel log_level() { return log_detail::level.load(std::memory_order_relaxed); }

void set_log_format(LogFormat format) { log_detail::format.store(format, std::memory_order_relaxed); }

void apply_log_settings(const Settings& settings) {
  if (const auto level = parse_log_level(settings.log); level.ok()) set_log_level(*level);
  set_log_format(settings.log_format == "json" ? LogFormat::json : LogFormat::text);
}

void log_changed_settings(const Settings& settings) {
  if (!log_enabled(LogLevel::debug)) return;
  std::vector<std::string> changed;
  for (const Settings::Entry& entry : settings.list()) {
    if (entry.value != entry.by_default)
      changed.push_back(fmt::format("{}={} ({})", entry.name, entry.value, entry.source));
  }
  log_debug("settings: {}", changed.empty() ? "all as by default" : fmt::format("{}", fmt::join(changed, ", ")));
}

void set_log_rank(int rank) { log_detail::rank.store(rank, std::memory_order_relaxed); }

void set_log_sink(LogSink sink) {
  log_detail::Sink& shared = log_detail::shared_sink();
  const std::lock_guard lock(shared.mutex);
  // Whoever takes over has seen nothing yet; the one before hears what was folded.
  for (const log_detail::Message& message : shared.fold.flush()) log_detail::write_now(shared, message);
  shared.fold = {};
  shared.sink = std::move(sink);
}

bool LogLimit::allow(std::int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (!started_ || now_ns - interval_start_ns_ >= interval_ns_) {
    started_ = true;
    interval_start_ns_ = now_ns;
    used_ = 0;
  }
  if (used_ < burst_) {
    ++used_;
    return true;
  }
  ++suppressed_;
  return false;
}

std::uint64_t LogLimit::take_suppressed() {
  const std::lock_guard lock(mutex_);
  return std::exchange(suppressed_, 0);
}

}  // namespace railyard
