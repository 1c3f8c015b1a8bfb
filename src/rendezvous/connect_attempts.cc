#include "rendezvous/connect_attempts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace railyard::rendezvous {

namespace {

constexpr std::int64_t kFirstPauseNs = 5'000'000;

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

void ConnectAttempts::begin_round(std::vector<Endpoint> endpoints) {
  const std::vector<Attempt> before = std::exchange(attempts_, {});
  for (Endpoint& endpoint : endpoints) {
    const std::size_t place = attempts_.size();
    const bool known = place < before.size() && before[place].endpoint.text == endpoint.text;
    attempts_.push_back({std::move(endpoint), known ? before[place].outcome : Attempt().outcome});
  }
  current_ = 0;
}

ConnectAttempts::Next ConnectAttempts::failed(Finality finality, Status status, std::string why) {
  attempts_[current_].outcome = std::move(why);
  hope_ = hope_ || finality == Finality::uncertain;
  if (weight(status) > weight(status_)) status_ = status;
  if (++current_ < attempts_.size()) return Next::endpoint;
  current_ = 0;
  ++round_;
  return std::exchange(hope_, false) ? Next::round : Next::none;
}

std::int64_t ConnectAttempts::pause_ns() const { return kFirstPauseNs << std::min<std::uint32_t>(round_, 7); }

std::string ConnectAttempts::story() const {
  std::string story;
  for (const Attempt& attempt : attempts_) {
    story += fmt::format("{}{}: {}", story.empty() ? "" : "; ", attempt.endpoint.text, attempt.outcome);
  }
  return story;
}

}  // namespace railyard::rendezvous
