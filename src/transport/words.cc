/// Records that change words in the memory of a GPU. Their flow stands still until the word is in place: what follows
/// takes effect afterwards, and the acknowledgement leaves afterwards. The engine goes on with all other flows.
#include <cstring>

#include "transport/applier.hpp"

namespace railyard::transport {

/// A put of eight bytes. If a signal on the same GPU comes next in its frame, both are under way together: the GPU does
/// one after the other, and the signal's end is the end of both.
Applier::Applied Applier::begin_put(Flow& flow, const ExposedRegion& region, const wire::RecordReader::Record& record,
                                    wire::RecordReader rest) {
  const std::size_t size = region.memory.size();
  wire::AtomicBody body;
  const std::uint64_t offset = wire::Put::of(record.header).offset;
  if (record.body.size() != sizeof body.operand || offset > size || size - offset < sizeof body.operand)
    return Applied::refused;
  std::memcpy(&body.operand, record.body.data(), sizeof body.operand);
  body.width = sizeof body.operand;
  std::byte* const to = region.memory.data() + offset;
  wire::RecordReader::Record next;
  if (rest.next(next) && next.joined && next.header.kind == wire::RecordKind::signal) {
    const ExposedRegion* const signals = memory_.find(wire::Signal::of(next.header).exposed_region, flow.route->world);
    if (signals != nullptr && signals->mirrored != nullptr && signals->mirrored->device() == region.device &&
        memory_.words().store_ahead(to, region.device, body.operand))
      return Applied::yes;
  }
  constexpr std::uint8_t kSet = wire::atomic_code(static_cast<std::uint8_t>(AtomicOp::set), wire::WordKind::bits);
  memory_.words().change(to, region.device, kSet, body, {.flow = &flow});
  return Applied::later;
}

/// False: it is none that this memory can do, and is refused like any other.
bool Applier::begin_word(Flow& flow, const ExposedRegion& region, const wire::RecordReader::Record& record) {
  if (record.header.kind == wire::RecordKind::signal) {
    MirroredWords* const mirrored = region.mirrored;
    std::uint64_t value = 0;
    if (mirrored == nullptr || record.body.size() != sizeof value) return false;
    std::memcpy(&value, record.body.data(), sizeof value);
    const auto signal = wire::Signal::of(record.header);
    if (!mirrored->apply(signal.index, signal.op, value)) return false;
    memory_.words().write(*mirrored, signal.index, {.flow = &flow});
    return true;
  }
  if (record.header.kind != wire::RecordKind::atomic || region.device < 0) return false;
  wire::AtomicBody body;
  if (record.body.size() != sizeof body) return false;
  std::memcpy(&body, record.body.data(), sizeof body);
  const auto atomic = wire::Atomic::of(record.header);
  std::byte* const word = find_word(region, atomic.offset, body.width);
  if (word == nullptr || (body.request != 0 && flow.receiver.replies.size() >= kMostFetches)) return false;
  memory_.words().change(word, region.device, atomic.code, body, {.flow = &flow});
  return true;
}

/// The record that the frame waits for has taken effect, or cannot; then the rest of the frame.
bool Applier::resume(Flow& flow, const DeviceWords::End& end) {
  FrameProgress frame = *flow.applying;
  flow.applying.reset();
  wire::RecordReader reader = frame.reader();
  wire::RecordReader::Record record;
  reader.next(record);
  const bool good = end.outcome == DeviceWords::Outcome::done;
  const FailureCause cause = good                                                ? FailureCause::none
                             : end.outcome == DeviceWords::Outcome::unknown_code ? FailureCause::unknown_code
                                                                                 : FailureCause::bad_memory;
  wire::AtomicBody body;
  if (record.header.kind == wire::RecordKind::atomic) std::memcpy(&body, record.body.data(), sizeof body);
  if (!good) ++core_.counts.dropped_malformed;
  if (body.request != 0) {
    flow.receiver.replies.push_back({body.request, static_cast<std::uint8_t>(cause), end.before});
    transmitter_.activate(flow);
  } else if (!good) {
    refuse(flow, frame, 1, cause);
    frame.skip = true;
  }
  ++frame.index;
  frame.at = reader.at();
  return flow.failed.load(std::memory_order_relaxed) || apply_rest(flow, frame);
}

}  // namespace railyard::transport
