#include "fabric/base_rail.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/log.hpp"

namespace railyard::fabric {

std::string BaseRail::failure() const {
  return fmt::format("{}: {} failed: {}", name_, failed_operation_, describe_error(failed_error_));
}

Post BaseRail::refuse_post(const char* operation, const Link* link, const PostErrors& errors) {
  if (stopped_) return fail(operation, errors.stopped);
  if (link == nullptr) return fail(operation, errors.unknown);
  return link->connecting() ? Post::busy : fail(operation, errors.lost);
}

Result<void> BaseRail::refuse_if_stopped() const {
  if (stopped_) return Error(Status::rail_failed, fmt::format("{} is stopped", name_));
  return {};
}

void BaseRail::watch_interface(std::string interface) {
  if (auto watch = LinkWatch::open(std::move(interface)))
    watch_ = std::move(*watch);
  else
    log_warn(in_log(), "{}; a dead interface is found by its silence", watch.error().text());
}

std::optional<bool> BaseRail::look_at_interface() {
  const auto usable = watch_ ? watch_->changed() : std::nullopt;
  if (usable) pending_.push_state(*usable);
  return usable;
}

}  // namespace railyard::fabric
