#include "base/log.hpp"

#include <unistd.h>

#include <cstddef>
#include <new>

namespace railyard {

namespace log_detail {

// Relaxed everywhere: the level publishes nothing but itself.
std::atomic<LogLevel> level{LogLevel::warn};

namespace {

std::atomic<int> rank{-1};

struct Sink {
  std::mutex mutex;
  LogSink sink;
};

// Never destroyed, so that a thread which logs while the process ends still finds it. In static memory: a plugin that
// is loaded and unloaded again and again leaves nothing behind.
Sink& shared_sink() {
  alignas(Sink) static std::byte room[sizeof(Sink)];
  static Sink* const instance = new (room) Sink;
  return *instance;
}

const char* word(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return "error: ";
    case LogLevel::warn:
      return "warning: ";
    case LogLevel::info:
      return "";
    case LogLevel::debug:
      return "debug: ";
  }
  return "";
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

void write(LogLevel level, std::string_view message) {
  const int own_rank = rank.load(std::memory_order_relaxed);
  std::string line = own_rank < 0 ? fmt::format("railyard: {}{}", word(level), message)
                                  : fmt::format("railyard[{}]: {}{}", own_rank, word(level), message);
  Sink& sink = shared_sink();
  const std::lock_guard lock(sink.mutex);
  if (sink.sink) {
    sink.sink(level, line);
  } else {
    write_to_stderr(std::move(line));
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

void set_log_rank(int rank) { log_detail::rank.store(rank, std::memory_order_relaxed); }

void set_log_sink(LogSink sink) {
  log_detail::Sink& shared = log_detail::shared_sink();
  const std::lock_guard lock(shared.mutex);
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
