/// What the device says of itself: ports that come and go, queue pairs that break, its own end.
#include <unistd.h>

#include <cerrno>

#include "base/coarse_ticks.hpp"
#include "base/log.hpp"
#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

/// By polls where there are many, by time where there are few.
void VerbsRail::look_around() {
  if (gone_) return;
  const std::uint64_t now = coarse_ticks();
  const bool late = now - looked_ >= kLookTicks;
  if (late) looked_ = now;
  if (late || turn_ % kSlowLook == 0) look_at_device();
  const bool busy = !handshaking_.empty() || !disconnects_.empty();
  if (!gone_ && (busy || late || turn_ % (kSlowLook * kSlowLook) == 0)) look_at_handshakes();
}

void VerbsRail::look_at_device() {
  ibv_async_event event{};
  while (!gone_ && library_->get_async_event(context_.get(), &event) == 0) {
    // Acknowledged before it is acted on: a queue pair cannot go while an event of it is open.
    const ibv_async_event copy = event;
    library_->ack_async_event(&event);
    take_device_event(copy);
  }
}

/// A device whose driver is being removed says nothing and goes on working, while the removal waits for its users: it
/// is known by the place of its user interface in /sys, which is empty at once. Its own stays until the end.
void VerbsRail::look_for_device() {
  if (gone_ || !in_system_ || ::access(context_->device->dev_path, F_OK) == 0) return;
  log_error(in_log(), "the device has gone");
  device_gone();
}

void VerbsRail::take_device_event(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num == port_.number) tell_port(true);
      break;
    case IBV_EVENT_PORT_ACTIVE:
      if (event.element.port_num == port_.number) tell_port(false);
      break;
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      if (auto* const pair = static_cast<Pair*>(event.element.qp->qp_context); pair != nullptr) pair->last_taken = true;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      if (auto* const pair = static_cast<Pair*>(event.element.qp->qp_context); pair != nullptr)
        pair_failed(*pair, kQueuePairFault, false);
      break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
      log_error(in_log(), "{}",
                event.event_type == IBV_EVENT_DEVICE_FATAL ? "the device has gone" : "a queue of the device failed");
      device_gone();
      break;
    default:
      break;  // addresses and tables that change: links that stand do not mind
  }
}

/// Devices repeat themselves; whoever listens hears of a change.
void VerbsRail::tell_port(bool down) {
  if (down == down_) return;
  down_ = down;
  pending_.push_state(!down);
}

/// Every link is lost, every context comes back, and the device is let go of: its driver may be waiting for that.
void VerbsRail::device_gone() {
  gone_ = true;
  links_.each([this](VerbsLink& link) {
    lose(link, kDeviceGone, false);
    link.pair = nullptr;
  });
  for (Slot& slot : slots_) {
    if (!slot.pair) continue;
    inbound_.end(*slot.pair);
    slot.pair->pair.reset();
    forget_pair(*slot.pair);
  }
  tell_port(true);
  close_device();
}

}  // namespace railyard::fabric::verbs
