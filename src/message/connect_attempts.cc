#include "message/connect_attempts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace railyard::message {

namespace {

constexpr std::int64_t kFirstPauseNs = 50'000'000;

/// A system's error says the least, another version the most.
int weight(Status status) {
  switch (status) {
    case Status::version_mismatch:
      return 3;
    case Status::refused:
      return 2;
    case Status::not_found:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

ConnectAttempts::ConnectAttempts(const std::vector<Target>& targets, std::uint16_t port) : port_(port) {
  attempts_.reserve(targets.size());
  for (const Target& target : targets) attempts_.push_back({target});
}

ConnectAttempts::Next ConnectAttempts::failed(Finality finality, Status status, std::string why) {
  attempts_[current_].outcome = std::move(why);
  hope_ = hope_ || finality == Finality::uncertain;
  if (weight(status) > weight(status_)) status_ = status;
  if (++current_ < attempts_.size()) return Next::target;
  current_ = 0;
  ++round_;
  return std::exchange(hope_, false) ? Next::round : Next::none;
}

std::int64_t ConnectAttempts::pause_ns() const { return kFirstPauseNs << std::min<std::uint32_t>(round_, 5); }

std::string ConnectAttempts::story() const {
  std::string story;
  for (const Attempt& attempt : attempts_) {
    story += fmt::format("{}{}: {}", story.empty() ? "" : "; ", attempt.target.text(port_), attempt.outcome);
  }
  return story;
}

}  // namespace railyard::message
