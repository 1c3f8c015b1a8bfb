/// Memory of GPUs in windows: what this process does to its own part.
#include <fmt/format.h>

#include <cstring>

#include "memory/location.hpp"
#include "window/window_state.hpp"

namespace railyard::window_detail {

bool WindowState::is_on_device(const void* memory) { return memory::find_device(memory).has_value(); }

/// Between two places of this process, at least one of them on a GPU. Done when it returns.
Result<void> WindowState::copy_at_home(const char* call, void* to, const void* from, std::size_t bytes) {
  const auto to_device = memory::find_device(to);
  const auto from_device = memory::find_device(from);
  if (!to_device && !from_device) {
    std::memmove(to, from, bytes);
    return {};
  }
  const std::lock_guard lock(base_.copies_mutex);
  auto copied = base_.copies.copy_now(to, to_device ? to_device->device : -1, from,
                                      from_device ? from_device->device : -1, bytes);
  if (copied) return {};
  return Error(copied.status(), fmt::format("{}: {}", call, copied.error().message()),
               {.peer = world_.rank, .operation = call});
}

Result<Ticket> WindowState::put_at_home(const Put& request) {
  if (auto copied = copy_at_home(request.call, memory().data() + request.offset, request.source, request.bytes);
      !copied) {
    return std::move(copied.error());
  }
  if (request.signal != nullptr) {
    const transport::ExposedRegion& signals = request.exposed_region == 0 ? exposed_region_ : barrier_exposed_region_;
    apply_signal(signals, request.signal->index, request.signal->op, request.signal->value);
  }
  if (request.counter != nullptr) count(*request.counter);
  return Ticket{};
}

}  // namespace railyard::window_detail
