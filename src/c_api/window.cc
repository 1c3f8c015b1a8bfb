/// Windows of the C API: each call checks its handle, casts and calls the C++ one.
#include <cstring>
#include <span>
#include <vector>

#include "c_api/operate.hpp"

using railyard::AtomicOp;
using railyard::Comparison;
using railyard::Completion;
using railyard::Deadline;
using railyard::Order;
using railyard::Result;
using railyard::Ticket;
using railyard::Window;
using railyard::WordType;
using namespace railyard::c_api;  // NOLINT(google-build-using-namespace): these are the C side's own helpers

namespace {

static_assert(sizeof(ry_ticket) == sizeof(Ticket));

Ticket to_ticket(ry_ticket ticket) { return Ticket{ticket.number, ticket.peer, ticket.slot}; }

railyard::CounterUpdate to_update(const ry_counter_update& update) { return {update.index, update.value}; }

bool is_comparison(ry_comparison comparison) { return comparison >= RY_EQUAL && comparison <= RY_GREATER_EQUAL; }
bool is_completion(ry_completion completion) { return completion == RY_LOCAL || completion == RY_REMOTE; }

ry_status fail_comparison(const char* call, int comparison) noexcept {
  return fail_value(call, "comparison", comparison, "RY_EQUAL (0) to RY_GREATER_EQUAL (5)");
}
ry_status fail_completion(const char* call, int completion) noexcept {
  return fail_value(call, "completion", completion, "RY_LOCAL (0) and RY_REMOTE (1)");
}

bool is_atomic_op(ry_atomic_op op) { return op >= RY_ADD && op <= RY_MAX; }
ry_status fail_atomic_op(const char* call, int op) noexcept {
  return fail_value(call, "atomic operation", op, "RY_ADD (0) to RY_MAX (10)");
}

/// Checks and runs a wait for several signals.
template <typename Wait>
ry_status wait_conditions(const char* call, ry_window* window, const ry_signal_condition* given, size_t count,
                          int64_t deadline_ms, Wait wait) noexcept {
  Deadline deadline;
  if (!usable(window)) return fail_unusable(call, window);
  if (given == nullptr && count > 0) return fail_invalid(call, "no conditions");
  if (!to_deadline(deadline_ms, deadline)) return fail_invalid(call, "no such deadline");
  return guarded(call, [&]() -> ry_status {
    std::vector<railyard::SignalCondition> conditions;
    conditions.reserve(count);
    for (const ry_signal_condition& each : std::span(given, count)) {
      if (!is_comparison(each.comparison)) return fail_comparison(call, each.comparison);
      conditions.push_back({each.index, static_cast<Comparison>(each.comparison), each.value, each.from});
    }
    return wait(window->window, std::span<const railyard::SignalCondition>(conditions), deadline);
  });
}

/// Runs one wait and hands out the value that it found.
template <typename Wait>
ry_status wait_value(const char* call, ry_window* window, int64_t deadline_ms, uint64_t* held, Wait wait) noexcept {
  Deadline deadline;
  if (!usable(window)) return fail_unusable(call, window);
  if (!to_deadline(deadline_ms, deadline)) return fail_invalid(call, "no such deadline");
  return guarded(call, [&]() -> ry_status {
    Result<std::uint64_t> value = wait(window->window, deadline);
    if (!value) return fail(value.error());
    if (held != nullptr) *held = *value;
    return RY_OK;
  });
}

/// Runs a call with a deadline that returns nothing.
template <typename Call>
ry_status with_deadline(const char* name, ry_window* window, int64_t deadline_ms, Call call) noexcept {
  Deadline deadline;
  if (!usable(window)) return fail_unusable(name, window);
  if (!to_deadline(deadline_ms, deadline)) return fail_invalid(name, "no such deadline");
  return guarded(name, [&]() -> ry_status { return status_of(call(window->window, deadline)); });
}

railyard::WindowOptions to_options(const ry_window_options* given) {
  const ry_window_options options = given == nullptr ? ry_window_default_options() : *given;
  railyard::WindowOptions out;
  out.signals = options.signals;
  out.counters = options.counters;
  out.per_rank = options.per_rank != 0;
  if (options.signal_memory != nullptr) out.signal_memory = {options.signal_memory, options.signals};
  if (options.counter_memory != nullptr) out.counter_memory = {options.counter_memory, options.counters};
  out.native_atomics = options.native_atomics != 0;
  out.device = options.device;
  return out;
}

/// Whether an operation is complete, as `look` has it.
template <typename Look>
ry_status look_at(const char* call, const ry_window* window, ry_completion completion, int* done, Look look) noexcept {
  if (!usable(window)) return fail_unusable(call, window);
  if (done == nullptr) return fail_invalid(call, "no place for the answer");
  if (!is_completion(completion)) return fail_completion(call, completion);
  return guarded(call, [&]() -> ry_status {
    Result<bool> complete = look(static_cast<Completion>(completion));
    if (!complete) return fail(complete.error());
    *done = *complete ? 1 : 0;
    return RY_OK;
  });
}

ry_status hand_out(Result<Window>&& made, ry_window** window) {
  if (!made) return fail(made.error());
  *window = new ry_window{std::move(*made), false};
  return RY_OK;
}

}  // namespace

extern "C" {

ry_window_options ry_window_default_options(void) {
  const railyard::WindowOptions defaults;
  return {defaults.signals, defaults.counters, defaults.per_rank ? 1 : 0, nullptr, nullptr, 0, defaults.device};
}

ry_status ry_window_allocate(ry_world* world, size_t bytes, const ry_window_options* options, ry_window** window) {
  if (world == nullptr || window == nullptr) return fail_invalid(__func__, "an argument is NULL");
  return guarded(__func__, [&]() -> ry_status {
    return hand_out(Window::allocate(world->world, bytes, to_options(options)), window);
  });
}

ry_status ry_window_adopt(ry_world* world, void* memory, size_t bytes, const ry_window_options* options,
                          ry_window** window) {
  if (world == nullptr || window == nullptr) return fail_invalid(__func__, "an argument is NULL");
  if (memory == nullptr && bytes > 0) return fail_invalid(__func__, "no memory");
  return guarded(__func__, [&]() -> ry_status {
    return hand_out(Window::adopt(world->world, {static_cast<std::byte*>(memory), bytes}, to_options(options)), window);
  });
}

ry_status ry_window_close(ry_window* window, int64_t deadline_ms) {
  return with_deadline(__func__, window, deadline_ms, [&](Window& w, Deadline deadline) {
    auto done = w.close(deadline);
    window->closed = done.ok();
    return done;
  });
}

ry_status ry_window_close_all(ry_window* const* windows, size_t count, int64_t deadline_ms) {
  Deadline deadline;
  if (windows == nullptr && count > 0) return fail_invalid(__func__, "no windows");
  if (!to_deadline(deadline_ms, deadline)) return fail_invalid(__func__, "no such deadline");
  const std::span given(windows, count);
  for (const ry_window* const each : given)
    if (!usable(each)) return fail_unusable(__func__, each);
  return guarded(__func__, [&]() -> ry_status {
    std::vector<Window*> all;
    for (ry_window* const each : given) all.push_back(&each->window);
    auto closed = Window::close_all(all, deadline);
    for (ry_window* const each : given) each->closed = !each->window.is_open();
    return status_of(std::move(closed));
  });
}

int ry_window_is_open(const ry_window* window) { return usable(window) ? 1 : 0; }

void ry_window_free(ry_window* window) { delete window; }

void* ry_window_local(const ry_window* window) { return !usable(window) ? nullptr : window->window.local().data(); }

size_t ry_window_bytes(const ry_window* window, int rank) { return !usable(window) ? 0 : window->window.bytes(rank); }

size_t ry_window_signals(const ry_window* window, int rank) {
  return !usable(window) ? 0 : window->window.signals(rank);
}

ry_status ry_put(ry_window* window, int rank, size_t offset, const void* source, size_t bytes, ry_order order,
                 ry_ticket* ticket) {
  if (order != RY_ORDERED && order != RY_RELAXED)
    return fail_value(__func__, "order", order, "RY_ORDERED (0) and RY_RELAXED (1)");
  return operate(__func__, window, ticket,
                 [&](Window& w) { return w.put(rank, offset, source, bytes, static_cast<Order>(order)); });
}

ry_status ry_put_value(ry_window* window, int rank, size_t offset, const void* value, size_t bytes, ry_ticket* ticket) {
  return operate(__func__, window, ticket, [&](Window& w) { return w.put_value(rank, offset, value, bytes); });
}

ry_status ry_get(ry_window* window, int rank, size_t offset, void* destination, size_t bytes, ry_ticket* ticket) {
  return operate(__func__, window, ticket, [&](Window& w) { return w.get(rank, offset, destination, bytes); });
}

ry_status ry_put_signal(ry_window* window, int rank, size_t offset, const void* source, size_t bytes,
                        ry_signal_update signal, ry_ticket* ticket) {
  if (!is_signal_op(signal.op)) return fail_signal_op(__func__, signal.op);
  return operate(__func__, window, ticket,
                 [&](Window& w) { return w.put_signal(rank, offset, source, bytes, to_update(signal)); });
}

ry_status ry_put_counter(ry_window* window, int rank, size_t offset, const void* source, size_t bytes,
                         ry_counter_update counter, ry_ticket* ticket) {
  return operate(__func__, window, ticket,
                 [&](Window& w) { return w.put_counter(rank, offset, source, bytes, to_update(counter)); });
}

ry_status ry_put_signal_counter(ry_window* window, int rank, size_t offset, const void* source, size_t bytes,
                                ry_signal_update signal, ry_counter_update counter, ry_ticket* ticket) {
  if (!is_signal_op(signal.op)) return fail_signal_op(__func__, signal.op);
  return operate(__func__, window, ticket, [&](Window& w) {
    return w.put_signal_counter(rank, offset, source, bytes, to_update(signal), to_update(counter));
  });
}

ry_status ry_signal(ry_window* window, int rank, ry_signal_update signal, ry_ticket* ticket) {
  if (!is_signal_op(signal.op)) return fail_signal_op(__func__, signal.op);
  return operate(__func__, window, ticket, [&](Window& w) { return w.signal(rank, to_update(signal)); });
}

ry_status ry_atomic(ry_window* window, int rank, size_t offset, ry_atomic_op op, size_t width, uint64_t operand,
                    uint64_t compare, void* before, ry_ticket* ticket) {
  if (!is_atomic_op(op)) return fail_atomic_op(__func__, op);
  return operate(__func__, window, ticket, [&](Window& w) {
    return w.atomic_word(rank, offset, static_cast<AtomicOp>(op), width, operand, compare, before);
  });
}

ry_status ry_atomic_typed(ry_window* window, int rank, size_t offset, ry_atomic_op op, ry_word_type type,
                          const void* operand, const void* compare, void* before, ry_ticket* ticket) {
  if (!is_atomic_op(op)) return fail_atomic_op(__func__, op);
  if (type < RY_INT32 || type > RY_DOUBLE)
    return fail_value(__func__, "word type", type, "RY_INT32 (0) to RY_DOUBLE (5)");
  const std::size_t width = type == RY_INT32 || type == RY_UINT32 || type == RY_FLOAT ? 4 : 8;
  std::uint64_t words[2] = {0, 0};  // little-endian: the low bytes come first
  if (operand != nullptr) std::memcpy(&words[0], operand, width);
  if (compare != nullptr) std::memcpy(&words[1], compare, width);
  return operate(__func__, window, ticket, [&](Window& w) {
    return w.atomic_word(rank, offset, static_cast<AtomicOp>(op), static_cast<WordType>(type), words[0], words[1],
                         before);
  });
}

uint64_t ry_read_signal(const ry_window* window, size_t index) {
  return !usable(window) ? 0 : window->window.read_signal(index);
}

ry_status ry_reset_signal(ry_window* window, size_t index) {
  if (!usable(window)) return fail_unusable(__func__, window);
  return guarded(__func__, [&]() -> ry_status { return status_of(window->window.reset_signal(index)); });
}

ry_status ry_wait_signal(ry_window* window, size_t index, ry_comparison comparison, uint64_t value, int64_t deadline_ms,
                         uint64_t* held) {
  if (!is_comparison(comparison)) return fail_comparison(__func__, comparison);
  return wait_value(__func__, window, deadline_ms, held, [&](Window& w, Deadline deadline) {
    return w.wait_signal(index, static_cast<Comparison>(comparison), value, deadline);
  });
}

ry_status ry_wait_any_signal(ry_window* window, const ry_signal_condition* conditions, size_t count,
                             int64_t deadline_ms, size_t* which, uint64_t* held) {
  return wait_conditions(__func__, window, conditions, count, deadline_ms,
                         [&](Window& w, std::span<const railyard::SignalCondition> all, Deadline deadline) {
                           auto met = w.wait_any_signal(all, deadline);
                           if (!met) return fail(met.error());
                           if (which != nullptr) *which = met->condition;
                           if (held != nullptr) *held = met->held;
                           return ry_status{RY_OK};
                         });
}

ry_status ry_wait_all_signals(ry_window* window, const ry_signal_condition* conditions, size_t count,
                              int64_t deadline_ms) {
  return wait_conditions(__func__, window, conditions, count, deadline_ms,
                         [](Window& w, std::span<const railyard::SignalCondition> all, Deadline deadline) {
                           return status_of(w.wait_all_signals(all, deadline));
                         });
}

uint64_t ry_read_counter(const ry_window* window, size_t index) {
  return !usable(window) ? 0 : window->window.read_counter(index);
}

ry_status ry_reset_counter(ry_window* window, size_t index) {
  if (!usable(window)) return fail_unusable(__func__, window);
  return guarded(__func__, [&]() -> ry_status { return status_of(window->window.reset_counter(index)); });
}

ry_status ry_wait_counter(ry_window* window, size_t index, uint64_t value, int64_t deadline_ms, uint64_t* held) {
  return wait_value(__func__, window, deadline_ms, held,
                    [&](Window& w, Deadline deadline) { return w.wait_counter(index, value, deadline); });
}

ry_status ry_test(ry_window* window, ry_ticket ticket, ry_completion completion, int* done) {
  return look_at(__func__, window, completion, done,
                 [&](Completion which) { return window->window.test(to_ticket(ticket), which); });
}

ry_status ry_peek(const ry_window* window, ry_ticket ticket, ry_completion completion, int* done) {
  return look_at(__func__, window, completion, done,
                 [&](Completion which) { return window->window.peek(to_ticket(ticket), which); });
}

ry_status ry_wait(ry_window* window, ry_ticket ticket, ry_completion completion, int64_t deadline_ms) {
  if (!is_completion(completion)) return fail_completion(__func__, completion);
  return with_deadline(__func__, window, deadline_ms, [&](Window& w, Deadline deadline) {
    return w.wait(to_ticket(ticket), static_cast<Completion>(completion), deadline);
  });
}

ry_status ry_fence(ry_window* window, int rank) {
  if (!usable(window)) return fail_unusable(__func__, window);
  return guarded(__func__, [&]() -> ry_status {
    return status_of(rank == RY_ALL_RANKS ? window->window.fence() : window->window.fence(rank));
  });
}

ry_status ry_quiet(ry_window* window, int rank, int64_t deadline_ms) {
  return with_deadline(__func__, window, deadline_ms, [&](Window& w, Deadline deadline) {
    return rank == RY_ALL_RANKS ? w.quiet(deadline) : w.quiet(rank, deadline);
  });
}

ry_status ry_barrier(ry_window* window, int64_t deadline_ms) {
  return with_deadline(__func__, window, deadline_ms, [](Window& w, Deadline deadline) { return w.barrier(deadline); });
}

}  // extern "C"
