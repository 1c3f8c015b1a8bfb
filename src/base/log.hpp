/// Logging: one line to stderr for each message, with its time, host, rank and rail; nothing formatted below the level.
/// A message that repeats is written once and counted. Never used on the data path of an operation that succeeds.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "railyard/result.hpp"

namespace railyard {

struct Settings;

enum class LogLevel : std::uint8_t { error, warn, info, debug };

/// The level of that name: error, warn, info or debug.
Result<LogLevel> parse_log_level(std::string_view name);

/// Messages above `level` are dropped before they are formatted. Starts as `warn`.
void set_log_level(LogLevel level);
LogLevel log_level();
/// What stderr gets: lines for people or one JSON object for each message. Starts as `text`.
enum class LogFormat : std::uint8_t { text, json };
void set_log_format(LogFormat format);
/// Level and format as RAILYARD_LOG and RAILYARD_LOG_FORMAT say.
void apply_log_settings(const Settings& settings);
/// Tells, at the level debug, which settings differ from their defaults and where their values came from.
void log_changed_settings(const Settings& settings);
/// Puts the rank in the prefix of every line; -1 takes it out again.
void set_log_rank(int rank);

/// The rail that a message is about.
struct LogRail {
  int number = -1;     ///< -1: it has none
  std::string device;  ///< its name, "tcp eth0 10.0.0.1"
};

/// Takes finished lines (prefix included, without time, host and line end). May be called from several threads, one at
/// a time.
using LogSink = std::function<void(LogLevel, std::string_view line)>;
/// Replaces where lines go; an empty sink is stderr again.
void set_log_sink(LogSink sink);

namespace log_detail {
extern std::atomic<LogLevel> level;
void write(LogLevel level, std::string message, LogRail rail = {});
/// Tells what was folded and not told yet.
void flush();
}  // namespace log_detail

/// Whether a message of this level would be written.
inline bool log_enabled(LogLevel level) { return level <= log_detail::level.load(std::memory_order_relaxed); }

template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::error))
    log_detail::write(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::warn)) log_detail::write(LogLevel::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::info)) log_detail::write(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::debug))
    log_detail::write(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}

/// The same for messages about a rail: its number and name come first.
template <typename... Args>
void log_error(const LogRail& rail, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::error))
    log_detail::write(LogLevel::error, fmt::format(format, std::forward<Args>(args)...), rail);
}
template <typename... Args>
void log_warn(const LogRail& rail, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::warn))
    log_detail::write(LogLevel::warn, fmt::format(format, std::forward<Args>(args)...), rail);
}
template <typename... Args>
void log_info(const LogRail& rail, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::info))
    log_detail::write(LogLevel::info, fmt::format(format, std::forward<Args>(args)...), rail);
}
template <typename... Args>
void log_debug(const LogRail& rail, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::debug))
    log_detail::write(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...), rail);
}

/// Keeps one call site from flooding the log: at most `burst` messages in each `interval`. Any thread may ask.
///
///     static LogLimit limit;
///     if (limit.allow(now)) log_warn("dropped a frame ({} more not shown)", limit.take_suppressed());
class LogLimit {
 public:
  constexpr explicit LogLimit(std::uint32_t burst = 5, std::int64_t interval_ns = 1'000'000'000)
      : burst_(burst), interval_ns_(interval_ns) {}

  /// Whether this message may be written; counts it as suppressed otherwise.
  bool allow(std::int64_t now_ns);
  /// How many were suppressed since the last call.
  std::uint64_t take_suppressed();

 private:
  const std::uint32_t burst_;
  const std::int64_t interval_ns_;
  std::mutex mutex_;
  bool started_ = false;
  std::int64_t interval_start_ns_ = 0;
  std::uint32_t used_ = 0;
  std::uint64_t suppressed_ = 0;
};

}  // namespace railyard
