/// What the operations of the C API share.
#pragma once

#include "c_api/handles.hpp"

namespace railyard::c_api {

inline railyard::SignalUpdate to_update(const ry_signal_update& update) {
  return {update.index, update.value, static_cast<railyard::SignalOp>(update.op)};
}

inline bool is_signal_op(ry_signal_op op) { return op == RY_SIGNAL_ADD || op == RY_SIGNAL_SET; }

inline ry_status fail_signal_op(const char* call, int op) noexcept {
  return fail_value(call, "signal operation", op, "RY_SIGNAL_ADD (0) and RY_SIGNAL_SET (1)");
}

/// Runs one operation and hands out its ticket where it is wanted.
template <typename Operation>
ry_status operate(const char* call, ry_window* window, ry_ticket* ticket, Operation operation) noexcept {
  if (!usable(window)) return fail_unusable(call, window);
  return guarded(call, [&]() -> ry_status {
    Result<Ticket> done = operation(window->window);
    if (!done) return fail(done.error());
    if (ticket != nullptr) *ticket = {done->number, done->peer, done->slot};
    return RY_OK;
  });
}

}  // namespace railyard::c_api
