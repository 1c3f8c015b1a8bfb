#include "transport/flow_receiver.hpp"

namespace railyard::transport {
namespace {

/// Frames of a window times the records that fit into one: an honest peer, which waits for acknowledgements, cannot
/// have more of them refused.
constexpr std::size_t kMostRefusals =
    wire::kMaxWindow * ((wire::kFrameBytes - wire::kRecordsAt) / sizeof(wire::RecordHeader));

}  // namespace

std::uint32_t FlowReceiver::arrived_ahead(std::span<std::uint64_t> words) const {
  const std::uint32_t ahead = granted_ - arrivals_.next();  // nothing beyond the grant can have arrived
  std::uint32_t used = 0;
  for (; used < words.size() && used * 64U < ahead; ++used) words[used] = arrivals_.word(arrivals_.next() + used * 64U);
  return used;
}

bool FlowReceiver::refuse(std::uint32_t sequence, std::uint32_t record, std::uint32_t count, FailureCause cause) {
  if (!refusals_.empty()) {
    wire::RefusedRecords& last = refusals_.back();
    const bool follows = last.sequence == sequence && last.first + last.count == record;
    if (follows && last.cause == static_cast<std::uint8_t>(cause)) {
      last.count = static_cast<std::uint16_t>(last.count + count);
      return true;
    }
  }
  if (refusals_.size() >= kMostRefusals) return false;
  wire::RefusedRecords refused;
  refused.sequence = sequence;
  refused.first = static_cast<std::uint16_t>(record);
  refused.count = static_cast<std::uint16_t>(count);
  refused.cause = static_cast<std::uint8_t>(cause);
  refusals_.push_back(refused);
  return true;
}

bool FlowReceiver::on_confirmed(std::uint64_t known) {
  const auto sequence = static_cast<std::uint32_t>(known);
  const auto first = static_cast<std::uint32_t>(known >> 32U);
  return std::erase_if(refusals_, [&](const wire::RefusedRecords& refused) {
           const auto ahead = static_cast<std::int32_t>(refused.sequence - sequence);
           return ahead < 0 || (ahead == 0 && refused.first <= first);
         }) != 0;
}

}  // namespace railyard::transport
