/// What happens on a channel while the progress lock is held: calls are taken, arrivals handed to the half they are
/// for.
#include <fmt/format.h>

#include "memory/location.hpp"
#include "message/channel_state.hpp"
#include "message/worker.hpp"

namespace railyard {

using message::InRegion;
using message::Kind;
using message::OfMessage;
using message::OfRegion;

namespace {

/// How long a peer that refused a message may take to say its last word.
constexpr std::int64_t kMostRefused = 1'000'000'000;

/// Whether the sender waits until this is acknowledged. It is done with the rest when that has left; but it copies
/// messages of several frames only while few of its messages are unacknowledged.
bool is_awaited(Kind kind, std::span<const std::byte> body) {
  if (kind == Kind::done || kind == Kind::detach || kind == Kind::overflow) return true;
  if (kind != Kind::eager || body.size() < sizeof(message::EagerHead)) return false;
  return message::read<message::EagerHead>(body.first(sizeof(message::EagerHead)))->bytes > message::kMostEagerChunk;
}

}  // namespace

bool ChannelState::advance() {
  take_calls();
  if (flow_ == nullptr) return true;
  if (flow_->failed.load(std::memory_order_relaxed)) {
    // A peer that was given up may not know it: memory that it was told of is not let go of before it is taken back.
    if (!cut_off_.load(std::memory_order_relaxed)) cut_off(flow_->error.copy(), true);
    if (closed_by_user_.load(std::memory_order_relaxed) && harmless()) drop_flow();
    return true;
  }
  if (!tell_overflow()) return false;
  if (ended() || peer_left_) return tend_closing();
  if (failed_.load(std::memory_order_relaxed)) return true;
  if (refused_.load(std::memory_order_relaxed) && tend_refusal()) return tend_closing();
  // Grants leave in one frame with the messages behind them, where there are any.
  flow_->sender.corked = true;
  const bool granted = receiver_.advance(*flow_);
  flow_->sender.corked = false;
  const bool sent = sender_.advance(*flow_);
  engine_.push(*flow_);
  if (sender_.overflow) overflowed(*sender_.overflow);
  return granted && sent && tell_overflow();
}

/// Takes the requests that the user has posted.
void ChannelState::take_calls() {
  while (const auto request = calls_.pop()) {
    if ((*request)->trace != nullptr) [[unlikely]] {
      using What = transport::EngineTrace::What;
      (*request)->trace->message_begun(flow_, (*request)->sends ? What::send : What::receive, *request,
                                       (*request)->bytes(), (*request)->traced_since);
    }
    const bool hopeless = failed_.load(std::memory_order_relaxed) || ((*request)->sends && sends_end());
    if (hopeless || !prepare(**request)) {
      (*request)->forget_memory();
      (*request)->fail();
    } else if ((*request)->sends) {
      sender_.post(*request);
    } else {
      receiver_.post(*request);
      if (receiver_.overflow) overflowed(*receiver_.overflow);
      if (cut_off_.load(std::memory_order_relaxed)) receiver_.settle(true);
    }
  }
}

/// Registers what the user has not: a message that goes inside records needs nothing. Only where it is received may the
/// peer write, and only as long as the receive lasts.
bool ChannelState::prepare(Request& request) {
  const auto take = [this](Result<std::shared_ptr<memory::Region>> found, std::shared_ptr<memory::Region>& region) {
    if (!found) {
      fail(Error(found.status(), fmt::format("a message's memory cannot be used: {}", found.error().message())));
      return false;
    }
    region = std::move(*found);
    return true;
  };
  if (request.sends) {
    if (request.region != nullptr) return true;
    const bool eager = request.message.size() <= engine_.settings().eager_bytes;
    const auto on_device = [&] {
      return !engine_.cache().remembered().hold(request.message.data(), request.message.size()) &&
             memory::find_device(request.message.data()).has_value();
    };
    if (eager && (request.message.empty() || !on_device())) return true;
    return take(engine_.cache().find(request.message), request.region);
  }
  for (std::size_t i = 0; i < request.count; ++i) {
    Request::Slot& target = request.slots[i];
    if (target.region != nullptr || target.memory.empty()) continue;
    if (!take(engine_.cache().expose(target.memory), target.region)) return false;
  }
  return true;
}

bool ChannelState::on_message(const transport::wire::Message& message, std::span<const std::byte> body) {
  worker_->touch(*this);
  const bool good = dispatch(message, body);
  if (receiver_.overflow) {
    overflowed(*receiver_.overflow);
  } else if (!good) {
    fail(Error(Status::invalid,
               fmt::format("the peer said what makes no sense here (kind {}): the channel is over", message.kind)));
  }
  return good;
}

bool ChannelState::dispatch(const transport::wire::Message& message, std::span<const std::byte> body) {
  const bool failed = message.failed;
  const auto kind = static_cast<Kind>(message.kind);
  // Whoever has given the channel up waits for the peer's last word alone.
  if (ended() && kind != Kind::detach) return true;
  if (failed && kind != Kind::done) return false;
  if (is_awaited(kind, body)) flow_->receiver.await_report();
  switch (kind) {
    case Kind::eager:
      engine_.note_small(*flow_);
      return receiver_.on_eager(OfMessage::of(message), body);
    case Kind::done: {
      const auto done = message::read<message::Done>(body);
      const auto about = OfMessage::of(message);
      return done && (failed ? receiver_.on_given_up(about, *done) : receiver_.on_done(about, *done));
    }
    case Kind::region:
      return sender_.on_region(OfRegion::of(message), body, peer_rails_);
    case Kind::grant: {
      const auto grant = message::read<message::Grant>(body);
      return grant && sender_.on_grant(InRegion::of(message), *grant);
    }
    case Kind::withdraw:
      sender_.on_withdraw(OfRegion::of(message).region);
      return true;
    case Kind::overflow: {
      const auto overflow = message::read<message::Overflow>(body);
      if (overflow) overflow_told_ = true;
      if (overflow) overflowed(*overflow);
      return overflow.has_value();
    }
    case Kind::detach:
      peer_left_ = true;
      return true;
  }
  return false;
}

void ChannelState::on_completed() {
  sender_.on_completed(flow_->completed.load(std::memory_order_relaxed));
  worker_->touch(*this);
}

/// What was sent has not reached the peer and never will. A peer that takes its memory back is about to say its last
/// word: what it sent before that is still received.
void ChannelState::on_refused(std::uint64_t number) {
  sender_.on_refused(number);
  if (refused_.load(std::memory_order_relaxed)) return;
  const auto failure = flow_->failure_of(number);
  refusal_ = Error(Status::peer_lost, fmt::format("{} does not take a message: {}", flow_->route->who,
                                                  failure ? failure->message() : "it has given up the channel"));
  refused_at_ = engine_.clock().now();
  refused_.store(true, std::memory_order_release);
  sender_.forget_waiting();
  worker_->linger(*this);
}

/// A peer that goes on must not wait for a message that never comes. True: this end has given the channel up.
bool ChannelState::tend_refusal() {
  if (engine_.clock().now() - refused_at_ < kMostRefused) {
    worker_->linger(*this);
    return false;
  }
  end_here(refusal_.copy());
  return true;
}

void ChannelState::ask_after_peer() {
  if (flow_ == nullptr) return;
  if (ended()) worker_->touch(*this);  // its time may be up
  const bool awaits_disconnect = ended() && !peer_left_;
  // A question that is open already goes on being asked.
  if ((harmless() && !awaits_disconnect) || flow_->route->concerned_since != 0) return;
  engine_.check_on(*flow_->route);
}

void ChannelState::on_failed() { worker_->touch(*this); }

/// From now on every call says so. The flow stays until the channel is closed.
void ChannelState::fail(Error error) {
  if (failed_.load(std::memory_order_relaxed)) return;
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void ChannelState::overflowed(const message::Overflow& overflow) {
  if (!overflow_) overflow_ = overflow;
  fail(Error(Status::out_of_range,
             fmt::format("a message of {} bytes does not fit a receive of {} bytes", overflow.bytes, overflow.room)));
}

/// Whoever finds that a message does not fit tells the other end, which knows only one of the two sizes.
bool ChannelState::tell_overflow() {
  if (!overflow_ || overflow_told_) return true;
  std::uint64_t operation = 0;
  overflow_told_ = engine_.submissions().try_message(
      *flow_, {static_cast<std::uint8_t>(Kind::overflow), 0, 0, message::bytes_of(*overflow_)}, operation);
  return overflow_told_;
}

}  // namespace railyard
