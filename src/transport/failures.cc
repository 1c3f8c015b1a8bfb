#include "transport/failures.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace railyard::transport {

const char* to_string(FailureCause cause) {
  switch (cause) {
    case FailureCause::none:
      return "nothing failed";
    case FailureCause::not_exposed:
      return "the target no longer has this window";
    case FailureCause::out_of_range:
      return "it is outside what the target exposes";
    case FailureCause::misaligned:
      return "the word is not aligned in the target's memory";
    case FailureCause::unknown_code:
      return "the target knows no such operation";
    case FailureCause::malformed:
      return "the target could not make sense of it";
    case FailureCause::bad_memory:
      return "the target's memory key or the local memory is not valid";
    case FailureCause::deregistered:
      return "its memory was deregistered";
    case FailureCause::rail_failed:
      return "a native atomic was lost with its rail, or that is down: whether it took effect is not known (a window "
             "without native_atomics would have repeated it)";
    case FailureCause::peer_lost:
      return "the peer is lost";
    case FailureCause::too_old:
      return "too many operations have failed since to tell";
  }
  return "a cause of a newer version";
}

Status status_of(FailureCause cause) {
  switch (cause) {
    case FailureCause::none:
      return Status::ok;
    case FailureCause::not_exposed:
      return Status::not_found;
    case FailureCause::out_of_range:
      return Status::out_of_range;
    case FailureCause::unknown_code:
      return Status::unsupported;
    case FailureCause::rail_failed:
      return Status::rail_failed;
    case FailureCause::peer_lost:
      return Status::peer_lost;
    case FailureCause::misaligned:
    case FailureCause::malformed:
    case FailureCause::bad_memory:
    case FailureCause::deregistered:
    case FailureCause::too_old:
      break;
  }
  return Status::invalid;
}

Error to_error(const Failure& failure) {
  return {
      status_of(failure.cause),
      failure.cause == FailureCause::too_old
          ? fmt::format("whether operation {} failed is not known: {}", failure.number, to_string(failure.cause))
          : fmt::format("operation {} to rank {} failed: {}", failure.number, failure.peer, to_string(failure.cause)),
      {.peer = failure.peer, .operation = "completion", .sequence = failure.sequence}};
}

bool FailureLog::record(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (!failures_.emplace(failure.number, failure).second) return false;
  if (!failure.told) untold_.fetch_add(1, std::memory_order_relaxed);
  if (failures_.size() > kMost) {
    const auto oldest = failures_.begin();
    forgotten_ = std::max(forgotten_, oldest->first);
    if (!oldest->second.told) untold_.fetch_sub(1, std::memory_order_relaxed);
    failures_.erase(oldest);
  }
  newest_.store(std::max(newest_.load(std::memory_order_relaxed), failure.number), std::memory_order_relaxed);
  return true;
}

std::optional<Failure> FailureLog::look_up(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (const auto found = failures_.find(number); found != failures_.end()) {
    Failure& failure = found->second;
    if (!failure.told) untold_.fetch_sub(1, std::memory_order_relaxed);
    failure.told = true;
    return failure;
  }
  if (number > forgotten_) return std::nullopt;
  return Failure{.number = number, .cause = FailureCause::too_old, .told = true};
}

std::optional<Failure> FailureLog::take_untold(const void* flow) {
  if (untold_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  std::optional<Failure> first;
  for (auto& [number, failure] : failures_) {
    if (failure.told || (flow != nullptr && failure.flow != flow)) continue;
    failure.told = true;
    untold_.fetch_sub(1, std::memory_order_relaxed);
    if (!first) first = failure;
  }
  return first;
}

}  // namespace railyard::transport
