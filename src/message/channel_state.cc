/// What the user of a channel calls.
#include "message/channel_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "accelerator/accelerator.hpp"
#include "base/log.hpp"
#include "message/worker.hpp"
#include "transport/stall.hpp"

namespace railyard {

ChannelState::ChannelState(std::shared_ptr<message::Worker> worker, std::size_t peer_rails)
    : worker_(std::move(worker)),
      engine_(worker_->engine()),
      peer_rails_(peer_rails),
      sender_(engine_, engine_.settings().eager_bytes),
      receiver_(engine_),
      calls_(2 * Channel::kMostRequests) {}

ChannelState::~ChannelState() = default;

bool ChannelState::reaches(const memory::Region& region) const {
  return flow_ != nullptr && std::ranges::all_of(flow_->route->links, [&](const transport::Link& link) {
           return region.reached_by(link.rail());
         });
}

Result<std::unique_ptr<Memory>> ChannelState::register_memory(std::span<std::byte> memory, DmaBufRange dma_buf,
                                                              MemoryUse use) {
  static_cast<void>(accelerator::may_have_gpus());
  const transport::ProgressGuard hold(engine_.progress_lock());
  if (closed_by_user_.load(std::memory_order_relaxed)) return failure();
  if (registrations_ == message::kMostRegistrations) {
    return Error(Status::no_memory, fmt::format("{} registrations on one channel are the most there can be: give "
                                                "up one, or make one larger",
                                                message::kMostRegistrations));
  }
  fabric::Access access{.remote = use == MemoryUse::any, .bulk = true};
  access.dma_buf = dma_buf.descriptor;
  access.dma_buf_offset = dma_buf.offset;
  auto region = memory::Region::open(engine_.rails(), memory, access);
  if (!region) return std::move(region.error());
  if ((*region)->device() >= 0 && !reaches(**region)) {
    return Error(
        Status::unsupported,
        fmt::format("{} bytes of GPU {}: the way to this peer does not reach the memory of GPUs: use host memory",
                    memory.size(), (*region)->device()));
  }
  if ((*region)->device() >= 0) {
    if (auto ready = receiver_.prepare_copies((*region)->device()); !ready) return std::move(ready.error());
  }
  auto state = std::make_unique<MemoryState>();
  state->channel = shared_from_this();
  if (use == MemoryUse::any) state->id = receiver_.add_region(*region);
  state->region = std::move(*region);
  ++registrations_;
  return std::unique_ptr<Memory>(new Memory(std::move(state)));
}

void ChannelState::hand_over(Request* request) {
  request->tests = 0;
  request->pending_since = 0;
  request->told = false;
  request->trace = nullptr;
  if (engine_.trace().on()) [[unlikely]] {
    request->trace = &engine_.trace();
    request->traced_since = engine_.trace().now();
    request->sizes = {};
  }
  request->state.store(Request::State::posted, std::memory_order_relaxed);
  calls_.push(request);  // there is room for every request
  worker_->call(*this);
}

/// Hands the request over; it goes out at once if nobody else is at work.
void ChannelState::post(Request* request) {
  hand_over(request);
  if (!engine_.progress_lock().try_take()) return;
  worker_->serve();
  engine_.progress_lock().give();
}

Result<Request*> ChannelState::send(std::span<const std::byte> message, int tag, const Memory* registered) {
  if (failed_.load(std::memory_order_acquire) || sends_end()) return failure();
  Request* const request = sends_.take();
  if (request == nullptr) {
    worker_->try_pass();
    return nullptr;
  }
  request->message = message;
  request->tag = tag;
  request->started = 0;
  request->region = registered != nullptr ? registered->state_->region : nullptr;
  post(request);
  return request;
}

Result<Request*> ChannelState::receive(std::span<const ReceiveSlot> slots, bool completion_optional) {
  if (failed_.load(std::memory_order_acquire)) return failure();
  if (slots.empty() || slots.size() > Channel::kMostSlots) {
    return Error(Status::invalid,
                 fmt::format("a receive of {} messages: it has 1 to {}", slots.size(), Channel::kMostSlots));
  }
  const auto for_sends = [](const ReceiveSlot& slot) {
    return slot.registered != nullptr && slot.registered->state_->id == 0;
  };
  if (std::ranges::any_of(slots, for_sends))
    return Error(Status::invalid, "a receive into memory that was registered for sends (MemoryUse::sends)");
  Request* const request = receives_.take();
  if (request == nullptr) {
    worker_->try_pass();
    return nullptr;
  }
  request->completion_optional = completion_optional;
  request->count = static_cast<std::uint8_t>(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Request::Slot& target = request->slots[i];
    target.memory = slots[i].memory;
    target.tag = slots[i].tag;
    target.taken = false;
    target.region_id = 0;
    target.region = slots[i].registered != nullptr ? slots[i].registered->state_->region : nullptr;
  }
  // No hurry: its grant leaves with the next send, or at the next test of anything here.
  hand_over(request);
  if (!cut_off_.load(std::memory_order_acquire)) return request;
  // There is nothing to wait for: either its messages are here or they will never be.
  const transport::ProgressGuard hold(engine_.progress_lock());
  take_calls();
  if (request->finished()) return request;
  receives_.give_back(request);
  return failure();
}

Result<bool> ChannelState::test(Request* request, std::span<std::uint64_t> sizes) {
  if (!request->finished()) worker_->try_pass();
  const auto lost = [&] {
    return failed_.load(std::memory_order_acquire) || request->has_failed() || (request->sends && sends_end());
  };
  switch (request->verdict(lost)) {
    case Request::Verdict::pending:
      watch_pending(*request);
      return false;
    case Request::Verdict::lost:
      return failure();
    case Request::Verdict::done:
      break;
  }
  for (std::size_t i = 0; i < sizes.size() && i < request->count; ++i) sizes[i] = request->sizes[i];
  (request->sends ? sends_ : receives_).give_back(request);
  return true;
}

Result<void> ChannelState::wait(Request* request, std::span<std::uint64_t> sizes, Deadline deadline) {
  const std::int64_t patience = deadline.nanoseconds(std::int64_t{engine_.settings().timeout_ms} * 1'000'000);
  Error error;
  const auto over = [&] {
    auto done = test(request, sizes);
    if (!done) error = std::move(done.error());
    return !done || *done;
  };
  request->told = true;  // here, and not by its tests
  const bool in_time = transport::wait_watched(
      engine_, patience, telemetry::Waiting::channel, -1,
      [&](std::int64_t time) { return engine_.wait_until(over, time); }, [&] { return describe_wait(*request); });
  if (error.status() != Status::ok) return error;
  if (in_time) return {};
  return Error(Status::timeout,
               fmt::format("a {} was not done after {} ms", request->sends ? "send" : "receive", patience / 1'000'000));
}

std::string ChannelState::describe_wait(const Request& request) {
  const transport::ProgressGuard hold(engine_.progress_lock());
  return fmt::format("a {} on a channel to {}: {}", request.sends ? "send" : "receive",
                     flow_ == nullptr ? "a peer that is gone" : flow_->route->who,
                     flow_ == nullptr ? "its flow is over" : transport::describe_flow(engine_, *flow_));
}

/// Users that never wait but test again and again: the clock is read now and then only.
void ChannelState::watch_pending(Request& request) {
  if (++request.tests % kTestsPerLook != 0 || request.told) return;
  const std::int64_t now = engine_.clock().now();
  if (request.pending_since == 0) request.pending_since = now;
  const std::int64_t limit = std::int64_t{engine_.settings().stall_ms} * 1'000'000;
  if (limit == 0 || now - request.pending_since < limit || !engine_.clock().real()) return;
  request.told = true;
  if (auto* telemetry = engine_.telemetry()) telemetry->count_stall();
  engine_.trace().event(
      {.kind = transport::EngineTrace::Kind::stall, .more = static_cast<std::uint64_t>(now - request.pending_since)});
  log_warn("stalled for {:.1f} s in {}", static_cast<double>(now - request.pending_since) * 1e-9,
           describe_wait(request));
}

ChannelStatistics ChannelState::statistics() {
  const transport::ProgressGuard hold(engine_.progress_lock());
  return counts();
}

ChannelStatistics ChannelState::counts() const {
  ChannelStatistics statistics;
  if (flow_ != nullptr) {
    const transport::Route& route = *flow_->route;
    statistics.peer = route.key.peer.text();
    statistics.route = route.key.number;
    statistics.shares = route.shared();
    statistics.sharers = static_cast<std::uint32_t>(route.flows.size());
  }
  statistics.messages_sent = sender_.messages;
  statistics.messages_received = receiver_.messages;
  statistics.bytes_sent = sender_.bytes;
  statistics.bytes_received = receiver_.bytes;
  statistics.eager_sent = sender_.eager;
  statistics.unexpected = receiver_.unexpected;
  return statistics;
}

}  // namespace railyard
