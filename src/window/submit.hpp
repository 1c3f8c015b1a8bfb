/// How operations are handed to the engine.
#pragma once

#include "window/window_state.hpp"

namespace railyard::window_detail {

/// Hands work to the flow of `rank`; with no room, waits for some (promise 6: a full queue is back-pressure).
template <typename Attempt>
[[gnu::hot]] Result<void> WindowState::submit(const char* call, int rank, Attempt&& attempt) {
  enum class Outcome : std::uint8_t { done, full, broken };
  Error error;
  const auto once = [&] {
    const transport::ProgressGuard hold(engine_.progress_lock());
    const auto flow = engine_.peers().flow(flow_of(rank));
    if (!flow) {
      error = in_our_terms(flow.error().copy());
      return Outcome::broken;
    }
    if ((*flow)->failed.load(std::memory_order_relaxed)) {
      error = in_our_terms((*flow)->error.copy());
      return Outcome::broken;
    }
    if (engine_.waiting().newly_attended(route_touched_)) [[unlikely]]
      engine_.warm_up(*(*flow)->route);
    engine_.completions().submits(use_.submitter());
    return attempt(**flow) ? Outcome::done : Outcome::full;
  };
  Outcome outcome = once();
  if (outcome == Outcome::full) {
    const std::int64_t patience = nanoseconds({});
    if (patience == 0) return Error(Status::busy);
    const bool over = wait_for_rank(call, rank, telemetry::Waiting::room, {}, [&](std::int64_t time) {
      return engine_.wait_until([&] { return (outcome = once()) != Outcome::full; }, time);
    });
    if (!over) return timed_out(call, rank, patience);
  }
  if (outcome == Outcome::broken) return error;
  return {};
}

}  // namespace railyard::window_detail
