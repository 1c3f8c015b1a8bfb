/// Operations on memory that this process can touch: its own part of a window, or a peer's that it has mapped. A put is
/// a copy, a signal a release-add, an atomic a locked instruction; each is complete when its call returns.
///
/// The promises stay as they are. An operation goes this way only while the engine has nothing under way to its target,
/// so it never overtakes what went before; what follows, either way, comes after it. A peer that is lost fails it: the
/// engine watches over the peer, and every so often an operation makes the pass in which it does.
///
/// Here is what every operation runs through, as code that its callers take in: a stream of short puts is as fast as
/// few of its stores are for anything but the data, since all wait in one queue for the lines to come.
#pragma once

#include <algorithm>
#include <cstring>

#include "shm/copy.hpp"
#include "window/window_state.hpp"

namespace railyard::window_detail {

/// What an operation costs in looks of a wait (see Pace).
inline constexpr std::uint32_t kWork = 2;
inline constexpr std::size_t kBytesPerLook = 1024;
inline constexpr std::size_t kShort = 64;  ///< bytes that are copied without a call

[[gnu::always_inline]] inline void WindowState::used_directly(DirectUse::What what, std::size_t bytes) {
  DirectUse& use = use_.direct();
  DirectUse::Line& line = use.mine();
  use.count(line, what, bytes);
  const std::size_t work = kWork + std::min<std::size_t>(bytes / kBytesPerLook, UINT16_MAX);
  if (line.pace.spend(static_cast<std::uint32_t>(work))) engine_.pass(line.pace);
}

[[gnu::always_inline]] inline void WindowState::put_directly(const DirectPart& part, const Put& request) {
  std::byte* const to = part.data.memory.data() + request.offset;
  const auto* const from = static_cast<const std::byte*>(request.source);
  if (part.heap) {
    part.distance.copy(to, from, request.bytes);
  } else if (request.bytes > 0) {
    std::memmove(to, from, request.bytes);
  }
  if (request.signal != nullptr) {
    apply_signal(signals_of(part, request), request.signal->index, request.signal->op, request.signal->value);
    if (part.sleepers->any()) [[unlikely]]
      wake(request.rank);
  }
  if (request.counter != nullptr) count(*request.counter);
  if (part.heap) used_directly(DirectUse::What::put, request.bytes);
}

/// A short put or signal from the host's memory on mapped memory, while nothing else is to be done: no pass is due,
/// nobody traces. It calls nothing, so its caller saves no register for it. False: nothing was done.
[[gnu::always_inline]] inline bool WindowState::put_at_once(const DirectPart& part, const Put& request) {
  const std::span<std::byte> memory = part.data.memory;
  if (request.bytes > kShort || request.offset > memory.size() || request.bytes > memory.size() - request.offset ||
      (request.source == nullptr && request.bytes != 0) || request.order > Order::relaxed ||
      request.counter != nullptr || traced_) [[unlikely]]
    return false;
  const SignalUpdate* const signal = request.signal;
  if (signal != nullptr && (request.exposed_region != 0 || signal->index >= part.data.signals.size() ||
                            signal->op > SignalOp::set)) [[unlikely]]
    return false;
  // Acquire: as in `may_touch`.
  const transport::Flow* const flow = part.flow.load(std::memory_order_acquire);
  if (flow == nullptr || flow->outstanding.load(std::memory_order_acquire) != 0 ||
      flow->failed.load(std::memory_order_acquire)) [[unlikely]]
    return false;
  DirectUse::Line* const line = use_.direct().mine_alone();
  if (line == nullptr || line->pace.spend(kWork)) [[unlikely]]
    return false;
  shm::copy_short(memory.data() + request.offset, static_cast<const std::byte*>(request.source), request.bytes);
  // The signal waits for all stores before it: what is ours alone comes after it.
  if (signal != nullptr) apply_signal(part.data, signal->index, signal->op, signal->value);
  DirectUse::count_alone(*line, DirectUse::What::put, request.bytes);
  if (signal != nullptr && part.sleepers->any()) [[unlikely]]
    wake(request.rank);
  return true;
}

/// A copy for the other ways: the request itself would have to lie in memory on this one too.
[[gnu::always_inline]] inline Result<Ticket> WindowState::put(const Put& request) {
  const std::size_t index = index_of(request.rank);
  if (index < parts_.size()) {
    if (const DirectPart* const direct = parts_[index].direct; direct != nullptr) {
      if ((!gpus_ || is_on_host_again(request.source, request.bytes)) && put_at_once(*direct, request)) [[likely]]
        return Ticket{};
      return put_mapped(Put{request.call, request.rank, request.offset, request.source, request.bytes, request.signal,
                            request.counter, request.order, request.exposed_region});
    }
  }
  return put_by_engine(Put{request.call, request.rank, request.offset, request.source, request.bytes, request.signal,
                           request.counter, request.order, request.exposed_region});
}

inline Result<Ticket> WindowState::get(int rank, std::size_t offset, void* destination, std::size_t bytes) {
  if (!is_good({.rank = rank, .offset = offset, .source = destination, .bytes = bytes}) ||
      on_device(part(rank), destination, bytes)) {
    return get_by_engine(rank, offset, destination, bytes);
  }
  const DirectPart* const direct = part(rank).direct;
  if (direct == nullptr || !may_touch(rank)) return get_by_engine(rank, offset, destination, bytes);
  const std::byte* const from = direct->data.memory.data() + offset;
  const std::int64_t began = trace_clock();
  if (direct->heap) {
    shm::copy_bytes(static_cast<std::byte*>(destination), from, bytes);
    used_directly(DirectUse::What::get, bytes);
  } else if (bytes > 0) {
    std::memmove(destination, from, bytes);
  }
  if (traced_) [[unlikely]]
    note_direct(rank, transport::EngineTrace::What::get, bytes, began);
  return Ticket{};
}

}  // namespace railyard::window_detail
