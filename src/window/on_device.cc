/// Memory of GPUs in windows: what this process does to its own part.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "memory/place.hpp"
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
  const auto failed = [&](const char* why) {
    return Error(Status::io, fmt::format("{}: a copy of {} bytes on a GPU: {}", call, bytes, why),
                 {.peer = world_.rank, .operation = call});
  };
  const int device = to_device ? to_device->device : from_device->device;
  fabric::DeviceCopies& copies = world_.copies;
  const std::lock_guard lock(world_.copies_mutex);
  const auto run = [&](void* target, const void* source, std::size_t size) -> Result<void> {
    auto ticket = copies.copy(device, target, source, size);
    if (!ticket) return std::move(ticket.error());
    if (copies.wait(*ticket) != fabric::DeviceCopies::State::done) return failed("the GPU failed");
    return {};
  };
  if (to_device && from_device) return run(to, from, bytes);
  std::byte* const bounce = copies.take_bounce();
  if (bounce == nullptr) return failed("there is no pinned memory");
  Result<void> result;
  for (std::size_t at = 0; at < bytes && result; at += fabric::DeviceCopies::kBounceBytes) {
    const std::size_t size = std::min(bytes - at, fabric::DeviceCopies::kBounceBytes);
    auto* const target = static_cast<std::byte*>(to) + at;
    const auto* const source = static_cast<const std::byte*>(from) + at;
    if (to_device) {
      std::memcpy(bounce, source, size);
      result = run(target, bounce, size);
    } else {
      result = run(bounce, source, size);
      if (result) std::memcpy(target, bounce, size);
    }
  }
  copies.give_bounce(bounce);
  return result;
}

Result<Ticket> WindowState::put_at_home(const Put& request) {
  if (auto copied = copy_at_home(request.call, memory().data() + request.offset, request.source, request.bytes);
      !copied) {
    return std::move(copied.error());
  }
  if (request.signal != nullptr) {
    const transport::Exposure& signals = request.exposure == 0 ? exposure_ : barrier_exposure_;
    apply_signal(signals, request.signal->index, request.signal->op, request.signal->value);
  }
  if (request.counter != nullptr) count(*request.counter);
  return Ticket{};
}

}  // namespace railyard::window_detail
