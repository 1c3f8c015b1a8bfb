#include "base/log_line.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <utility>

namespace railyard::log_detail {

namespace {

const char* prefix_word(LogLevel level) {
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

const char* level_name(LogLevel level) {
  static constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  return kNames[static_cast<std::size_t>(level)];
}

std::string repeats(std::uint64_t count) {
  return count == 0 ? "" : fmt::format(" (repeated {} time{})", count, count == 1 ? "" : "s");
}

std::string subject(const Message& message) {
  if (message.device.empty()) return "";
  return message.rail < 0 ? fmt::format("{}: ", message.device)
                          : fmt::format("rail {} ({}): ", message.rail, message.device);
}

/// Bytes above 127 are passed on: a file name in UTF-8 stays readable.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

bool same(const Message& a, const Message& b) {
  return a.level == b.level && a.rail == b.rail && a.device == b.device && a.text == b.text;
}

}  // namespace

std::string timestamp(std::int64_t unix_ns) {
  const auto seconds = static_cast<time_t>(unix_ns / 1'000'000'000);
  tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, unix_ns / 1'000'000 % 1000);
}

std::string text_line(const Message& message, int rank) {
  return fmt::format("railyard{}: {}{}{}{}", rank < 0 ? "" : fmt::format("[{}]", rank), prefix_word(message.level),
                     subject(message), message.text, repeats(message.more));
}

std::string stamped_line(const Message& message, const Origin& origin, std::int64_t unix_ns) {
  return fmt::format("{} {} {}", timestamp(unix_ns), origin.host, text_line(message, origin.rank));
}

std::string json_line(const Message& message, const Origin& origin, std::int64_t unix_ns) {
  std::string out =
      fmt::format(R"({{"time":"{}","host":{},"pid":{})", timestamp(unix_ns), quoted(origin.host), origin.process);
  if (origin.rank >= 0) out += fmt::format(R"(,"rank":{})", origin.rank);
  out += fmt::format(R"(,"level":"{}")", level_name(message.level));
  if (message.rail >= 0) out += fmt::format(R"(,"rail":{})", message.rail);
  if (!message.device.empty()) out += fmt::format(R"(,"device":{})", quoted(message.device));
  out += fmt::format(R"(,"message":{})", quoted(message.text));
  if (message.more != 0) out += fmt::format(R"(,"repeated":{})", message.more);
  return out + "}";
}

void RepeatFold::tell(Entry& entry, std::vector<Message>& out) {
  if (entry.folded == 0) return;
  entry.message.more = std::exchange(entry.folded, 0);
  out.push_back(entry.message);
}

std::vector<Message> RepeatFold::take(Message message, std::int64_t now_ns) {
  std::vector<Message> out;
  Entry* place = nullptr;
  for (Entry& entry : entries_) {
    const bool over = now_ns - entry.written_ns >= kWindowNs;
    if (entry.used && same(entry.message, message)) {
      if (!over) {
        ++entry.folded;
        return out;
      }
      place = &entry;
    } else if (entry.used && over) {
      tell(entry, out);
      entry.used = false;
    }
  }
  if (place != nullptr) {
    message.more = place->folded;
  } else {
    place = &*std::ranges::min_element(entries_, {},
                                       [](const Entry& entry) { return entry.used ? entry.written_ns : INT64_MIN; });
    if (place->used) tell(*place, out);
  }
  out.push_back(message);
  *place = {std::move(message), now_ns, 0, true};
  return out;
}

std::vector<Message> RepeatFold::flush() {
  std::vector<Message> out;
  for (Entry& entry : entries_) tell(entry, out);
  return out;
}

}  // namespace railyard::log_detail
