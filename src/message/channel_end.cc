/// How a channel ends. Each end says DETACH once, as the last thing in its sequence: whoever hears it knows that
/// everything of the other's has landed. Whoever has heard it gives its own in return. Only when both have spoken is
/// memory let go of, and the flow's name given to another.
#include <fmt/format.h>

#include <utility>

#include "base/log.hpp"
#include "message/channel_state.hpp"
#include "message/context.hpp"

namespace railyard {
namespace {

using message::Kind;

/// How long an end stays after both have spoken, so that the other gets its last acknowledgement; and how long it waits
/// for its own, which may have got lost with a link.
constexpr std::int64_t kLinger = 20'000'000;
constexpr std::int64_t kMostLinger = 1'000'000'000;
/// Passes until a rail has given back what a dropped link held.
constexpr int kMostTurns = 100'000;

}  // namespace

/// Whether nothing of the user's memory is in anybody's hands.
bool ChannelState::harmless() const { return sender_.idle() && receiver_.idle(); }

void ChannelState::close() {
  if (closed_by_user_.exchange(true, std::memory_order_relaxed)) return;
  {
    const transport::BatonHold hold(engine_.baton());
    take_calls();
    fail(Error(Status::invalid, "the channel was closed"));
    sender_.forget_waiting();
    if (flow_ != nullptr) context_->note_leaving(leaving_ = 1);
    if (flow_ == nullptr || harmless()) {
      // The rest is between the two ends; the context sees it through.
      context_->touch(*this);
      context_->serve();
      return;
    }
    context_->touch(*this);
  }
  const std::int64_t patience = std::int64_t{engine_.settings().timeout_ms} * 1'000'000;
  const auto quiet = [this] {
    context_->try_pass();
    return quiet_.load(std::memory_order_acquire);
  };
  if (engine_.wait_until(quiet, patience)) return;
  const transport::BatonHold hold(engine_.baton());
  if (flow_ == nullptr) return;
  log_warn("{} did not answer for {} ms when a channel was closed: it is shut out", flow_->route->who,
           patience / 1'000'000);
  shut_out();
}

/// The peer does not answer: nothing of its may land any more before the memory is let go of.
void ChannelState::shut_out() {
  engine_.shut_out(*flow_, "it did not answer when a channel was closed");
  for (int turn = 0; turn < kMostTurns && flow_->posted != 0; ++turn) engine_.progress();
  drop_flow();
}

void ChannelState::end_at_once(const std::string& why) {
  closed_by_user_.store(true, std::memory_order_relaxed);
  fail(Error(Status::invalid, why));
  if (flow_ != nullptr) drop_flow();
  context_->touch(*this);
}

/// True: nothing to be done before there is news or time has passed.
bool ChannelState::tend_closing() {
  if (peer_left_) {
    fail(Error(Status::peer_lost, fmt::format("{} has closed the channel", flow_->route->who)));
    sender_.forget_waiting();
  }
  if (!detach_said_) {
    std::uint64_t operation = 0;
    detach_said_ = engine_.try_message(*flow_, {static_cast<std::uint8_t>(Kind::detach), 0, 0, {}}, operation);
    if (!detach_said_) return false;
  }
  if (!peer_left_) return true;
  const std::int64_t now = engine_.clock().now();
  if (both_spoke_at_ == 0) both_spoke_at_ = now;
  const bool acknowledged = flow_->outstanding.load(std::memory_order_relaxed) == 0;
  if (now - both_spoke_at_ < (acknowledged ? kLinger : kMostLinger)) {
    context_->linger(*this);
    return true;
  }
  drop_flow();
  return true;
}

void ChannelState::drop_flow() {
  engine_.close_flow(*flow_);
  flow_ = nullptr;
  context_->note_leaving(-std::exchange(leaving_, 0));
  sender_.give_up();
  receiver_.give_up();
  for (auto* requests : {&sends_, &receives_}) {
    for (const auto& request : *requests) {
      request->region.reset();
      for (Request::Place& place : request->places) place.region.reset();
    }
  }
  quiet_.store(true, std::memory_order_release);
}

}  // namespace railyard
