/// How a log message becomes a line: text for people, JSON for machines; and how repeats are folded into one.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"

namespace railyard::log_detail {

struct Message {
  LogLevel level = LogLevel::info;
  int rail = -1;           ///< -1: of no rail, or of one without a number
  std::string device;      ///< empty: the message concerns no rail
  std::string text;        ///< without a prefix
  std::uint64_t more = 0;  ///< equal ones that were not written
};

/// Where and when: the same for every line of a process but the time.
struct Origin {
  std::string host;
  int process = 0;
  int rank = -1;
};

/// "railyard[3]: warning: rail 1 (tcp eth1 10.0.0.1): ...": what a sink gets.
std::string text_line(const Message& message, int rank);
/// The same with time and host in front: what stderr gets.
std::string stamped_line(const Message& message, const Origin& origin, std::int64_t unix_ns);
/// One JSON object.
std::string json_line(const Message& message, const Origin& origin, std::int64_t unix_ns);

/// "2026-11-16T14:02:40.123Z"
std::string timestamp(std::int64_t unix_ns);

/// Remembers the last messages. One that comes again soon is not written but counted.
class RepeatFold {
 public:
  static constexpr std::int64_t kWindowNs = 10'000'000'000;

  /// What to write now that `message` has come: counts of others whose time is over, then it itself or nothing.
  std::vector<Message> take(Message message, std::int64_t now_ns);
  /// The counts that nobody has seen yet.
  std::vector<Message> flush();

 private:
  struct Entry {
    Message message;
    std::int64_t written_ns = 0;
    std::uint64_t folded = 0;
    bool used = false;
  };
  static void tell(Entry& entry, std::vector<Message>& out);

  std::array<Entry, 16> entries_;
};

}  // namespace railyard::log_detail
