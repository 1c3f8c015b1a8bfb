/// Waits that take long: shown in the telemetry after a moment, and reported once in the log after RAILYARD_STALL_MS,
/// with what is waited for and how things stand there. Costs nothing before that moment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/log.hpp"
#include "telemetry/schema.hpp"
#include "transport/engine.hpp"

namespace railyard::transport {

/// How the flow to a peer stands: sequence, credits, rails, when it was last heard of. Progress lock held.
std::string describe_flow(const Engine& engine, const Flow& flow);
/// The same for a rank. Takes the progress lock.
std::string describe_peer(Engine& engine, std::uint32_t id);

/// A wait that has taken a while already.
class LongWait {
 public:
  /// `waited`: so far. `peer`: a rank, or -1.
  LongWait(Engine& engine, telemetry::Waiting what, int peer, std::int64_t waited)
      : engine_(engine), peer_(peer), began_(engine.clock().now() - waited) {
    const std::int64_t limit = std::int64_t{engine.settings().stall_ms} * 1'000'000;
    if (limit != 0 && engine.clock().real()) report_at_ = began_ + limit;
    if (auto* telemetry = engine.telemetry()) telemetry->begin_wait(what, peer);
  }
  ~LongWait() {
    if (auto* telemetry = engine_.telemetry()) telemetry->end_wait();
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  /// Until it has to be reported.
  std::int64_t left() const {
    return report_at_ == INT64_MAX ? INT64_MAX : std::max<std::int64_t>(0, report_at_ - engine_.clock().now());
  }
  /// Reports it, if that is due. `describe` makes the text.
  template <typename Describe>
  void look(Describe&& describe) {
    const std::int64_t now = engine_.clock().now();
    if (now < report_at_) return;
    report_at_ = INT64_MAX;
    if (auto* telemetry = engine_.telemetry()) telemetry->count_stall();
    engine_.trace().event(
        {.kind = EngineTrace::Kind::stall, .peer = peer_, .more = static_cast<std::uint64_t>(now - began_)});
    log_warn("stalled for {:.1f} s in {}", static_cast<double>(now - began_) * 1e-9, describe());
  }

 private:
  Engine& engine_;
  int peer_;
  std::int64_t began_;
  std::int64_t report_at_ = INT64_MAX;
};

/// How long a wait takes before it is a long one.
inline constexpr std::int64_t kLongWait = 100'000'000;

/// `wait` waits for so many nanoseconds at most, and says whether it is over.
template <typename Wait, typename Describe>
bool wait_watched(Engine& engine, std::int64_t nanoseconds, telemetry::Waiting what, int peer, Wait&& wait,
                  Describe&& describe) {
  // Time that is simulated may pass as it likes.
  if (nanoseconds <= kLongWait || !engine.clock().real()) return wait(nanoseconds);
  const std::int64_t stall = std::int64_t{engine.settings().stall_ms} * 1'000'000;
  const std::int64_t first = stall == 0 ? kLongWait : std::min(kLongWait, stall);
  if (wait(first)) return true;
  // The clock is read now: most waits are over before.
  const std::int64_t start = engine.clock().now() - first;
  LongWait watched(engine, what, peer, first);
  for (;;) {
    watched.look(describe);
    const std::int64_t spent = engine.clock().now() - start;
    if (spent >= nanoseconds) return false;
    if (wait(std::min(nanoseconds - spent, watched.left()))) return true;
  }
}

}  // namespace railyard::transport
