/// The less frequent part of direct.hpp.
#include "window/direct.hpp"

#include <algorithm>

#include "base/touch.hpp"

namespace railyard::window_detail {
namespace {

constexpr std::size_t kMostWarm = 4;  ///< ranks whose parts are touched: with more, few of them are answered at once

}  // namespace

bool WindowState::begin_touching(int rank) {
  const transport::ProgressGuard hold(engine_.progress_lock());
  const auto flow = engine_.peers().flow(flow_of(rank));
  if (!flow) return false;  // the engine's own way says why
  engine_.use_directly(**flow);
  if (const DirectPart* const direct = part(rank).direct; direct != nullptr)
    direct->flow.store(*flow, std::memory_order_release);
  return (*flow)->outstanding.load(std::memory_order_relaxed) == 0 && !(*flow)->failed.load(std::memory_order_relaxed);
}

/// After a sleep: whoever was woken by a signal often answers with one. Our own objects alone: the memory of a window
/// may lie on a GPU.
void WindowState::warm_up() const {
  touch(*this);
  touch(parts_.data(), std::min(parts_.size(), kMostWarm) * sizeof(PeerPart));
  for (std::size_t i = 0; i < std::min(direct_parts_.size(), kMostWarm); ++i) touch(*direct_parts_[i]);
}

[[gnu::hot]] Result<Ticket> WindowState::put_mapped(const Put& request) {
  const DirectPart& direct = *part(request.rank).direct;
  if (on_device(part(request.rank), request.source, request.bytes)) return put_by_engine(request);
  if (gpus_ && put_at_once(direct, request)) return Ticket{};
  if (!is_good(request) || !takes(direct, request) || !may_touch(request.rank)) return put_by_engine(request);
  if (traced_) {
    put_traced(direct, request);
  } else {
    put_directly(direct, request);
  }
  return Ticket{};
}

void WindowState::put_traced(const DirectPart& part, const Put& request) {
  using What = transport::EngineTrace::What;
  const std::int64_t began = trace_clock();
  put_directly(part, request);
  const bool bytes = request.bytes != 0;
  const What what = request.signal == nullptr ? What::put : bytes ? What::put_signal : What::signal;
  note_direct(request.rank, what, request.bytes, began);
}

void WindowState::note_direct(int rank, transport::EngineTrace::What what, std::size_t bytes,
                              std::int64_t began) const {
  engine_.trace().direct(world_.world_rank(rank), what, bytes, began, use_.number());
}

bool WindowState::atomic_directly(const DirectPart& part, std::size_t offset, std::uint8_t code,
                                  const transport::wire::AtomicBody& body, std::uint64_t& before) {
  const bool applied = apply_atomic(part.data, offset, code, body, before);
  if (part.heap) used_directly(DirectUse::What::atomic, 0);
  return applied;
}

}  // namespace railyard::window_detail
