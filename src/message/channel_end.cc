/// How a channel ends. Each end says DETACH once, as the last thing in its sequence: whoever hears it knows that
/// everything of the other's has landed. Whoever has heard it gives its own in return. The user waits for none of this:
/// a call returns when nobody can touch the user's memory, and that can be had without the peer (Revocation::revoke).
/// The rest is between the two ends; the worker sees it through.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "message/channel_state.hpp"
#include "message/worker.hpp"

namespace railyard {
namespace {

using message::Kind;

/// How long an end stays after both have spoken, so that the other gets its last acknowledgement; and how long where
/// that may have got lost with a link.
constexpr std::int64_t kLinger = 20'000'000;
constexpr std::int64_t kMostLinger = 1'000'000'000;

}  // namespace

// ---- The user's memory ----

/// Whether nothing of the user's memory is in anybody's hands.
bool ChannelState::harmless() const {
  if (!receiver_.idle()) return false;
  if (flow_ == nullptr) return true;
  return flow_->failed.load(std::memory_order_relaxed) ? flow_->posted == 0 : sender_.idle();
}

/// A peer that is there lets go of memory by itself, and nothing breaks by that. It gets some time for it; all channels
/// that end at the same time share that, so that any number of peers that do not answer costs it once. Then, or where
/// there is no peer to wait for, the memory is taken back without it.
template <typename Done>
void ChannelState::have_memory_back(Done&& done) {
  const auto look = [&] {
    if (!engine_.progress_lock().try_take()) return false;
    worker_->pass();
    const bool finished = done() || flow_ == nullptr || flow_->failed.load(std::memory_order_relaxed);
    engine_.progress_lock().give();
    return finished;
  };
  const std::int64_t began = engine_.clock().now();
  const bool answered = engine_.wait_until(look, worker_->patience());
  if (!answered) worker_->spend_patience(engine_.clock().now() - began);
  const transport::ProgressGuard hold(engine_.progress_lock());
  if (done()) return;
  if (!answered) log_info("a peer does not answer: memory of a channel that ends is taken back without it");
  take_memory_back();
  worker_->touch(*this);
  worker_->serve();
}

/// From whoever has it: peers that were told of it, rails that read it.
void ChannelState::take_memory_back() {
  std::vector<std::shared_ptr<memory::Region>> regions;
  receiver_.collect(regions);
  receiver_.settle(false);
  if (flow_ != nullptr) engine_.revocation().revoke(*flow_);
  sender_.give_up();
  std::ranges::sort(regions);
  regions.erase(std::unique(regions.begin(), regions.end()), regions.end());
  for (const auto& region : regions) {
    engine_.cache().forget(region->memory());
    engine_.revocation().revoke(*region);
  }
}

/// Rails that still hold what the peer has had already let go of it by themselves, and soon. Only where that takes too
/// long does it cost their links.
void ChannelState::take_from_rails(const std::shared_ptr<memory::Region>& region) {
  const auto look = [&] {
    if (!engine_.progress_lock().try_take()) return false;
    worker_->pass();
    const bool is_held = held(region);
    engine_.progress_lock().give();
    return !is_held;
  };
  const std::int64_t began = engine_.clock().now();
  const bool let_go = engine_.wait_until(look, worker_->patience());
  if (!let_go) worker_->spend_patience(engine_.clock().now() - began);
  const transport::ProgressGuard hold(engine_.progress_lock());
  if (!let_go && held(region)) log_info("rails have not let go of memory that is deregistered: it is taken from them");
  engine_.revocation().revoke_registration(*region);
}

/// Whether a rail has something of it in hand. What does holds a reference.
bool ChannelState::held(const std::shared_ptr<memory::Region>& region) const {
  return region.use_count() > 1 && engine_.revocation().holds(*region);
}

/// Returns when nobody can touch the memory any more. A message under way that needs it ends the channel: NCCL gives
/// memory back before it closes what it aborts.
void ChannelState::deregister(std::shared_ptr<memory::Region> region, std::uint32_t id) {
  const auto unused = [&] { return !sender_.uses(*region) && !receiver_.uses(*region); };
  bool free = false;
  {
    const transport::ProgressGuard hold(engine_.progress_lock());
    --registrations_;
    take_calls();
    free = unused();
    if (!free) end_here(Error(Status::invalid, "memory was deregistered with messages under way: the channel is over"));
    if (id != 0) receiver_.drop_region(id);
    if (free) {
      region->settle();  // no receive waits for a message into it: all that the peer was allowed has happened
      // A message is done when the peer says so, and the rail that brought it there may not have let go of it yet.
      if (!held(region)) region->revoke();
    }
    if (flow_ != nullptr) {  // else the worker may have let go of this channel
      worker_->touch(*this);
      advance();
    }
    if (region->revoked()) return region.reset();
  }
  if (!free) have_memory_back(unused);
  take_from_rails(region);
  const transport::ProgressGuard hold(engine_.progress_lock());
  region.reset();
}

// ---- The two ends ----

void ChannelState::close() {
  if (closed_by_user_.exchange(true, std::memory_order_relaxed)) return;
  {
    const transport::ProgressGuard hold(engine_.progress_lock());
    take_calls();
    fail(Error(Status::invalid, "the channel was closed"));
    sender_.forget_waiting();
    receiver_.forget_arrived();
    if (flow_ != nullptr) worker_->note_leaving(leaving_ = 1);
    worker_->touch(*this);
    worker_->serve();
    if (harmless()) return;
  }
  have_memory_back([this] { return harmless(); });
}

void ChannelState::end_at_once(const std::string& why) {
  closed_by_user_.store(true, std::memory_order_relaxed);
  fail(Error(Status::invalid, why));
  if (!harmless()) take_memory_back();
  if (flow_ != nullptr) drop_flow();
  worker_->touch(*this);
}

/// This end gives the channel up; its user has yet to close it.
void ChannelState::end_here(Error error) {
  fail(std::move(error));
  if (std::exchange(over_here_, true)) return;
  sender_.forget_waiting();
  worker_->touch(*this);
}

/// Nothing more will come from the peer, and nothing can go to it.
void ChannelState::cut_off(Error error, bool exposed) {
  take_calls();
  cut_error_ = std::move(error);
  cut_off_.store(true, std::memory_order_release);
  sender_.forget_waiting();
  receiver_.settle(exposed);
}

/// True: nothing to be done before there is news or time has passed.
bool ChannelState::tend_closing() {
  if (peer_left_ && !cut_off_.load(std::memory_order_relaxed)) {
    cut_off(Error(Status::peer_lost, fmt::format("{} has closed the channel", flow_->route->who)), false);
  }
  if (!detach_said_) {
    detach_said_ =
        engine_.submissions().try_message(*flow_, {static_cast<std::uint8_t>(Kind::detach), 0, 0, {}}, detach_);
    if (!detach_said_) return false;
  }
  if (may_leave()) {
    drop_flow();
  } else if (peer_left_) {
    worker_->linger(*this);
  }
  return true;
}

/// An end leaves when its last word has been heard, or its peer is lost; and not before it has heard the peer's, or
/// that had the time to come.
bool ChannelState::may_leave() {
  const std::int64_t now = engine_.clock().now();
  const bool heard = flow_->completed.load(std::memory_order_relaxed) >= detach_;
  if (heard && heard_since_ == 0) heard_since_ = now;
  if (peer_left_ && both_spoke_at_ == 0) both_spoke_at_ = now;
  // From now on the peer may drop its end: questions about links are not to be asked in this flow's name.
  flow_->parting = heard || peer_left_;
  // What our own rails still read is seen through, or taken back by the user's end.
  if (!sender_.idle()) return false;
  const std::int64_t patience = std::int64_t{engine_.settings().timeout_ms} * 1'000'000;
  if (!peer_left_) return heard && now - heard_since_ >= patience;
  const std::int64_t lingered = now - both_spoke_at_;
  if (lingered < kLinger) return false;
  // A peer that has not heard our last word waits for it: nobody else could tell it. One that has, and whose
  // acknowledgement was lost, has left.
  if (!heard) return lingered >= std::max(patience, kMostLinger);
  const bool told = !flow_->in_reporting && std::ranges::all_of(flow_->route->links, &transport::Link::up);
  return told || lingered >= kMostLinger;
}

bool ChannelState::owes() const {
  return closed_by_user_.load(std::memory_order_relaxed) && flow_ != nullptr && !peer_left_ &&
         !flow_->failed.load(std::memory_order_relaxed) && sender_.owes(*flow_);
}

void ChannelState::drop_flow() {
  log_debug("channel to {}: closed, flow {}; {} messages sent, {} received", flow_->route->who, flow_->id,
            sender_.messages, receiver_.messages);
  sender_.give_up();
  receiver_.settle(true);  // memory that the peer was told of stays until the user's end takes it back
  engine_.close_flow(*flow_);
  flow_ = nullptr;
  worker_->note_leaving(-std::exchange(leaving_, 0));
}

}  // namespace railyard
