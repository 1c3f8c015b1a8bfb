#include "transport/flow_sender.hpp"

namespace railyard::transport {

bool FlowSender::may_begin(Operation& operation) {
  if (!operation.fenced) return true;
  if (unordered_ != 0) return false;
  fence_sequence_ = next_sequence_;
  fence_active_ = true;
  operation.fenced = false;
  return true;
}

bool FlowSender::may_land() {
  if (fence_active_ && static_cast<std::int32_t>(acknowledged_ - fence_sequence_) < 0) return false;
  fence_active_ = false;
  return true;
}

std::uint32_t FlowSender::on_link_lost(std::uint16_t link) {
  std::uint32_t waiting = 0;
  for (Segment* segment = unacknowledged_.head(); segment != nullptr; segment = segment->next) {
    if (segment->link != link || segment->again) continue;
    segment->lost = true;
    ++waiting;
  }
  return waiting;
}

}  // namespace railyard::transport
