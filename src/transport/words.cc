/// Records that change words in the memory of a GPU. Their flow stands still until the word is in place: what follows
/// takes effect afterwards, and the acknowledgement leaves afterwards. The engine goes on with all other flows.
#include <algorithm>
#include <cstring>

#include "transport/engine.hpp"

namespace railyard::transport {

/// A put of eight bytes. If a signal on the same GPU comes next in its frame, both are under way together: the GPU does
/// one after the other, and the signal's end is the end of both.
Engine::Applied Engine::begin_put(Flow& flow, const ExposedRegion& exposed_region,
                                  const wire::RecordReader::Record& record, wire::RecordReader rest) {
  const std::size_t size = exposed_region.memory.size();
  wire::AtomicBody body;
  if (record.body.size() != sizeof body.operand || record.header.offset > size ||
      size - record.header.offset < sizeof body.operand)
    return Applied::refused;
  std::memcpy(&body.operand, record.body.data(), sizeof body.operand);
  body.width = sizeof body.operand;
  std::byte* const to = exposed_region.memory.data() + record.header.offset;
  const auto next = rest.next();
  if (next && next->joined && next->header.kind == wire::RecordKind::signal) {
    const ExposedRegion* const signals = exposed_regions_.find(next->header.exposed_region);
    if (signals != nullptr && signals->mirrored != nullptr && signals->mirrored->device() == exposed_region.device &&
        words_.store_ahead(to, exposed_region.device, body.operand))
      return Applied::yes;
  }
  constexpr std::uint8_t kSet = wire::atomic_code(static_cast<std::uint8_t>(AtomicOp::set), wire::WordKind::bits);
  words_.change(to, exposed_region.device, kSet, body, {.flow = &flow});
  return Applied::later;
}

/// False: it is none that this memory can do, and is refused like any other.
bool Engine::begin_word(Flow& flow, const ExposedRegion& exposed_region, const wire::RecordReader::Record& record) {
  if (record.header.kind == wire::RecordKind::signal) {
    MirroredWords* const mirrored = exposed_region.mirrored;
    std::uint64_t value = 0;
    if (mirrored == nullptr || record.body.size() != sizeof value) return false;
    std::memcpy(&value, record.body.data(), sizeof value);
    const auto op = static_cast<SignalOp>(record.header.detail);
    if (!apply_signal(mirrored->latest(), record.header.offset, op, value)) return false;
    words_.write(*mirrored, record.header.offset, {.flow = &flow});
    return true;
  }
  if (record.header.kind != wire::RecordKind::atomic || exposed_region.device < 0) return false;
  wire::AtomicBody body;
  if (record.body.size() != sizeof body) return false;
  std::memcpy(&body, record.body.data(), sizeof body);
  std::byte* const word = find_word(exposed_region, record.header.offset, body.width);
  if (word == nullptr || (body.request != 0 && flow.receiver.replies.size() >= kMostFetches)) return false;
  words_.change(word, exposed_region.device, record.header.detail, body, {.flow = &flow});
  return true;
}

bool Engine::end_words() {
  words_.advance();
  const auto ended = words_.take_ended();
  for (const DeviceWords::End& end : ended) {
    if (end.waiter.own != nullptr) {
      end.waiter.own->before = end.before;
      end.waiter.own->good = end.outcome == DeviceWords::Outcome::done;
      end.waiter.own->over.store(true, std::memory_order_release);
    }
    if (end.waiter.flow != nullptr && end.waiter.flow->applying) end_word(*end.waiter.flow, end);
  }
  return !ended.empty();
}

/// The record that the flow's frame waits for has taken effect, or cannot; then the rest of the frame.
void Engine::end_word(Flow& flow, const DeviceWords::End& end) {
  FrameProgress frame = *flow.applying;
  flow.applying.reset();
  const bool good = end.outcome == DeviceWords::Outcome::done;
  const FailureCause cause = good                                                ? FailureCause::none
                             : end.outcome == DeviceWords::Outcome::unknown_code ? FailureCause::unknown_code
                                                                                 : FailureCause::bad_memory;
  wire::AtomicBody body;
  if (frame.waiting.header.kind == wire::RecordKind::atomic) std::memcpy(&body, frame.waiting.body.data(), sizeof body);
  if (!good) ++counts_.dropped_malformed;
  if (body.request != 0) {
    flow.receiver.replies.push_back({body.request, static_cast<std::uint8_t>(cause), end.before});
    activate(flow);
  } else if (!good) {
    refuse(flow, frame.sequence, frame.index, 1, cause);
    frame.skip = true;
  }
  ++frame.index;
  const bool failed = flow.failed.load(std::memory_order_relaxed);
  if (!failed && !apply_records(flow, frame)) return;
  receives_->give(frame.buffer);
  if (flow.failed.load(std::memory_order_relaxed)) return;
  flow.receiver.advance();
  report_soon(flow);
  release_ready(flow);
}

void Engine::conceal(std::uint32_t id) {
  const ExposedRegion* const found = exposed_regions_.find(id);
  if (found == nullptr) return;
  const ExposedRegion region = *found;
  exposed_regions_.erase(id);  // first: what comes next for it is refused
  if (region.device >= 0) words_.settle(region.memory);
  if (region.mirrored != nullptr) words_.settle(std::as_bytes(region.mirrored->words()));
}

void Engine::note_counter(const std::uint64_t* counter) {
  for (MirroredWords* mirrored : mirrored_counters_) {
    const std::span<std::uint64_t> latest = mirrored->latest();
    if (counter < latest.data() || counter >= latest.data() + latest.size()) continue;
    return words_.write(*mirrored, static_cast<std::size_t>(counter - latest.data()), {});
  }
}

void Engine::forget_mirror(MirroredWords& counters) {
  forget_counters(counters.latest());
  std::erase(mirrored_counters_, &counters);
  words_.settle(std::as_bytes(counters.words()));
}

}  // namespace railyard::transport
