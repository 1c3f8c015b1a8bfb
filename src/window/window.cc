#include "railyard/window.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "window/assemble.hpp"
#include "window/direct.hpp"

namespace railyard {
namespace {

std::uint64_t load(const std::uint64_t& word) {
  // Acquire: pairs with the release that changed the word; what came before it is visible.
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

Result<Window> meet(World& world, WindowAssembly assembly) {
  WorldState& state = window_detail::WorldAccess::state(world);
  if (state.bootstrap == nullptr) return Error(Status::unsupported, "this world was assembled: use WindowAssembly");
  const auto deadline = Deadline::in(std::chrono::milliseconds(state.engine().settings().bootstrap_timeout_ms));
  const auto mine = assembly.contribution();
  auto all = state.with_progress([&] { return state.bootstrap->allgather(mine, deadline); });
  if (!all) return std::move(all.error());
  return assembly.finish(*all);
}

}  // namespace

Window::Window(std::unique_ptr<window_detail::WindowState> state) : state_(std::move(state)) {}
Window::Window(Window&&) noexcept = default;
Window& Window::operator=(Window&&) noexcept = default;
Window::~Window() = default;

Result<Window> WindowAssembly::finish(std::span<const std::vector<std::byte>> all) {
  if (error_.status() != Status::ok) return std::move(error_);
  if (auto finished = state_->finish(all); !finished) return std::move(finished.error());
  return Window(std::move(state_));
}

Result<Window> Window::allocate(World& world, std::size_t bytes, const WindowOptions& options) {
  return meet(world, WindowAssembly::begin(world, bytes, options));
}

Result<Window> Window::adopt(World& world, std::span<std::byte> memory, const WindowOptions& options) {
  return meet(world, WindowAssembly::begin(world, memory, options));
}

std::span<std::byte> Window::local() const noexcept { return state_->memory(); }
std::shared_ptr<const void> Window::keep_local() const noexcept { return state_->keep_storage(); }
std::size_t Window::bytes(int rank) const noexcept {
  return state_->check_rank("", rank) ? state_->part(rank).bytes : 0;
}
std::size_t Window::signals(int rank) const noexcept {
  return state_->check_rank("", rank) ? state_->part(rank).signals : 0;
}

Result<Ticket> Window::put(int rank, std::size_t offset, const void* source, std::size_t bytes, Order order) {
  return state_->put({.call = "put", .rank = rank, .offset = offset, .source = source, .bytes = bytes, .order = order});
}

Result<Ticket> Window::put_value(int rank, std::size_t offset, const void* value, std::size_t bytes) {
  if (bytes == 0 || bytes > 8) {
    return Error(Status::invalid, fmt::format("put_value: {} bytes; 1 to 8 are possible", bytes),
                 {.peer = rank, .operation = "put_value"});
  }
  return state_->put({.call = "put_value", .rank = rank, .offset = offset, .source = value, .bytes = bytes});
}

Result<Ticket> Window::get(int rank, std::size_t offset, void* destination, std::size_t bytes) {
  return state_->get(rank, offset, destination, bytes);
}

[[gnu::hot]] Result<Ticket> Window::put_signal(int rank, std::size_t offset, const void* source, std::size_t bytes,
                                               SignalUpdate signal) {
  return state_->put(
      {.call = "put_signal", .rank = rank, .offset = offset, .source = source, .bytes = bytes, .signal = &signal});
}

Result<Ticket> Window::put_counter(int rank, std::size_t offset, const void* source, std::size_t bytes,
                                   CounterUpdate counter) {
  return state_->put(
      {.call = "put_counter", .rank = rank, .offset = offset, .source = source, .bytes = bytes, .counter = &counter});
}

Result<Ticket> Window::put_signal_counter(int rank, std::size_t offset, const void* source, std::size_t bytes,
                                          SignalUpdate signal, CounterUpdate counter) {
  return state_->put({.call = "put_signal_counter",
                      .rank = rank,
                      .offset = offset,
                      .source = source,
                      .bytes = bytes,
                      .signal = &signal,
                      .counter = &counter});
}

Result<Ticket> Window::signal(int rank, SignalUpdate signal) {
  return state_->put({.call = "signal", .rank = rank, .signal = &signal});
}

Result<Ticket> Window::atomic_word(int rank, std::size_t offset, AtomicOp op, std::size_t width, std::uint64_t operand,
                                   std::uint64_t compare, void* before) {
  const auto word = static_cast<std::uint32_t>(width);
  return state_->atomic(rank, offset, op, WordType::uint64, {operand, compare, 0, word}, before);
}

Result<Ticket> Window::atomic_word(int rank, std::size_t offset, AtomicOp op, WordType type, std::uint64_t operand,
                                   std::uint64_t compare, void* before) {
  // One that has no name has no width either, and is refused.
  static constexpr std::uint32_t kWidths[] = {4, 4, 8, 8, 4, 8};
  const std::uint32_t width = type <= WordType::float64 ? kWidths[static_cast<std::size_t>(type)] : 0;
  return state_->atomic(rank, offset, op, type, {operand, compare, 0, width}, before);
}

std::uint64_t Window::read_signal(std::size_t index) const noexcept {
  return index < state_->signals().size() ? state_->read_signal(index) : 0;
}

std::uint64_t window_detail::WindowState::read_signal(std::size_t index) {
  if (!signal_adds().empty()) read_adds("read_signal", *storage_->device_signals, index);
  return load(signals()[index]);
}

std::uint64_t window_detail::WindowState::read_counter(std::size_t index) {
  if (!counter_adds().empty()) read_adds("read_counter", *storage_->device_counters, index);
  return load(counters_[index]);
}

Result<void> Window::reset_signal(std::size_t index) {
  if (auto checked = state_->check_signal("reset_signal", state_->world().rank, index); !checked) return checked;
  return state_->reset_signal(index);
}

std::uint64_t Window::read_counter(std::size_t index) const noexcept {
  return index < state_->counters().size() ? state_->read_counter(index) : 0;
}

Result<void> Window::reset_counter(std::size_t index) {
  if (auto checked = state_->check_counter("reset_counter", index); !checked) return checked;
  return state_->reset_counter(index);
}

Result<std::uint64_t> Window::wait_counter(std::size_t index, std::uint64_t value, Deadline deadline) {
  if (auto checked = state_->check_counter("wait_counter", index); !checked) return std::move(checked.error());
  const std::uint64_t& word = state_->counters()[index];
  std::uint64_t held = 0;
  const std::int64_t patience = state_->nanoseconds(deadline);
  // A failed operation leaves nothing outstanding: no use in waiting on.
  transport::Engine& engine = state_->engine();
  const auto look = [&] {
    if ((held = load(word)) >= value) return true;
    state_->want_counter(index);
    return false;
  };
  const auto done = [&] { return look() || state_->outstanding() == 0; };
  const bool in_time = engine.wait_until(done, patience);
  if (look()) return held;
  for (int rank = 0; rank < state_->world().size; ++rank) {
    const transport::Flow* flow = state_->existing_flow(rank);
    if (flow != nullptr && flow->failed.load(std::memory_order_acquire))
      return state_->in_our_terms(flow->error.copy());
    if (in_time && engine.completions().any_failed()) {
      if (auto failure = engine.untold_failure(state_->flow_of(rank))) return state_->in_our_terms(std::move(*failure));
    }
  }
  if (in_time) engine.wait_until(look, patience);
  if (held >= value) return held;
  return Error(Status::timeout,
               fmt::format("wait_counter: counter {} holds {}, not {} or more, after {:.3f} s", index, held, value,
                           static_cast<double>(patience) * 1e-9),
               {.operation = "wait_counter"});
}

namespace {

bool has_slot(const Ticket& ticket) { return ticket.slot != 0 && ticket.slot != window_detail::kSourceFree; }

Error not_a_ticket(const Ticket& ticket) {
  return {Status::invalid,
          fmt::format("no operation of this window has the ticket (number {}, peer {}, slot {})", ticket.number,
                      ticket.peer, ticket.slot),
          {.peer = ticket.peer}};
}

/// What every ticket must be to be looked at.
Result<void> check_ticket(const window_detail::WindowState& state, const char* call, const Ticket& ticket,
                          Completion completion) {
  if (completion > Completion::remote) {
    return window_detail::WindowState::unknown(call, "completion", static_cast<int>(completion),
                                               "local (0) and remote (1)");
  }
  return ticket.number == 0 ? Result<void>() : state.check_rank(call, ticket.peer);
}

}  // namespace

Result<bool> window_detail::WindowState::look(const Ticket& ticket, Completion completion) const {
  if (ticket.number == 0) return true;
  const transport::Flow* flow = existing_flow(ticket.peer);
  if (flow == nullptr) return not_a_ticket(ticket);
  if (has_slot(ticket)) {
    if (!engine_.completions().slot_known(ticket)) return not_a_ticket(ticket);
    if (!engine_.completions().slot_done(ticket)) return false;
    const auto failure = engine_.completions().slot_failure(ticket);
    if (!failure) return true;
    if (failure->cause == transport::FailureCause::peer_lost && flow->failed.load(std::memory_order_acquire))
      return in_our_terms(flow->error.copy());
    return in_our_terms(to_error(*failure));
  }
  if (completion == Completion::local && ticket.slot == window_detail::kSourceFree) return true;
  if (flow->completed.load(std::memory_order_acquire) >= ticket.number) {
    if (auto failure = flow->failure_of(ticket.number)) return in_our_terms(std::move(*failure));
    return true;
  }
  if (flow->failed.load(std::memory_order_acquire)) return in_our_terms(flow->error.copy());
  // One that was never given out would never be done.
  if (ticket.number > flow->submitted.load(std::memory_order_relaxed)) return not_a_ticket(ticket);
  return false;
}

Result<bool> Window::test(Ticket ticket, Completion completion) {
  transport::Engine& engine = state_->engine();
  state_->settle();
  if (auto checked = check_ticket(*state_, "test", ticket, completion); !checked) return std::move(checked.error());
  auto seen = state_->look(ticket, completion);
  if (!seen || *seen) return seen;
  if (engine.progress_lock().try_take()) {
    engine.progress();
    engine.progress_lock().give();
  }
  return state_->look(ticket, completion);
}

Result<bool> Window::peek(Ticket ticket, Completion completion) const {
  if (auto checked = check_ticket(*state_, "peek", ticket, completion); !checked) return std::move(checked.error());
  return state_->look(ticket, completion);
}

Result<void> Window::wait(Ticket ticket, Completion completion, Deadline deadline) {
  state_->settle();
  if (auto checked = check_ticket(*state_, "wait", ticket, completion); !checked) return checked;
  return state_->wait("wait", ticket, completion, deadline);
}

Result<void> window_detail::WindowState::wait(const char* call, const Ticket& ticket, Completion completion,
                                              Deadline deadline) {
  if (auto seen = look(ticket, completion); !seen) {
    return std::move(seen.error());
  } else if (*seen) {
    return {};
  }
  Error error;
  const auto seen_over = [&] {
    auto seen = look(ticket, completion);
    if (!seen) error = std::move(seen.error());
    return !seen || *seen;
  };
  const bool over = wait_for_rank(call, ticket.peer, telemetry::Waiting::ticket, deadline,
                                  [&](std::int64_t time) { return engine_.wait_until(seen_over, time); });
  if (error.status() != Status::ok) return error;
  if (!over) return timed_out(call, ticket.peer, nanoseconds(deadline));
  return {};
}

Result<void> Window::fence(int rank) {
  if (auto checked = state_->check_rank("fence", rank); !checked) return checked;
  state_->settle();
  transport::Flow* flow = state_->existing_flow(rank);
  if (flow == nullptr || flow->outstanding.load(std::memory_order_acquire) == 0) return {};
  const transport::ProgressGuard hold(state_->engine().progress_lock());
  flow->sender.request_fence();
  return {};
}

Result<void> Window::fence() {
  state_->settle();
  if (state_->outstanding() == 0) return {};
  for (int rank = 0; rank < state_->world().size; ++rank) {
    if (!state_->holds(rank)) continue;
    if (auto fenced = fence(rank); !fenced) return fenced;
  }
  return {};
}

Result<void> Window::quiet(int rank, Deadline deadline) {
  if (auto checked = state_->check_rank("quiet", rank); !checked) return checked;
  state_->settle();
  transport::Engine& engine = state_->engine();
  const transport::Flow* flow = state_->existing_flow(rank);
  if (flow == nullptr) return {};
  const auto complete = [&] { return flow->outstanding.load(std::memory_order_acquire) == 0; };
  const bool done = state_->wait_for_rank("quiet", rank, telemetry::Waiting::quiet, deadline,
                                          [&](std::int64_t time) { return engine.wait_until(complete, time); });
  // A rank that left when all was complete is no loss.
  if (flow->failed.load(std::memory_order_acquire)) {
    return flow->lost_operations.load(std::memory_order_relaxed)
               ? Result<void>(state_->in_our_terms(flow->error.copy()))
               : Result<void>();
  }
  if (!done) return state_->timed_out("quiet", rank, state_->nanoseconds(deadline));
  if (engine.completions().any_failed()) {
    if (auto failure = engine.untold_failure(state_->flow_of(rank))) return state_->in_our_terms(std::move(*failure));
  }
  return {};
}

Result<void> Window::quiet(Deadline deadline) {
  if (auto open = state_->check_open("quiet"); !open) return open;
  state_->settle();
  transport::Engine& engine = state_->engine();
  const bool done = state_->wait_for_all(deadline);
  if (done && !engine.completions().any_failed()) return {};
  for (int rank = 0; rank < state_->world().size; ++rank) {
    transport::Flow* flow = state_->existing_flow(rank);
    if (flow == nullptr) continue;
    // Once for each peer that was lost with something under way: after that the window carries on without it.
    if (flow->failed.load(std::memory_order_acquire)) {
      const bool lost = flow->lost_operations.load(std::memory_order_relaxed);
      if (lost && !flow->loss_told.exchange(true, std::memory_order_relaxed))
        return state_->in_our_terms(flow->error.copy());
      continue;
    }
    if (flow->outstanding.load(std::memory_order_acquire) != 0)
      return state_->timed_out("quiet", rank, state_->nanoseconds(deadline));
    if (auto failure = engine.untold_failure(state_->flow_of(rank))) return state_->in_our_terms(std::move(*failure));
  }
  return {};
}

}  // namespace railyard
