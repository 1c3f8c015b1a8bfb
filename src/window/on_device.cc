/// Memory of GPUs in windows: what this process does to its own part.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

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
  if (request.bytes > 0) {
    auto copied = copy_at_home(request.call, memory().data() + request.offset, request.source, request.bytes);
    if (!copied) return std::move(copied.error());
  }
  if (signals_at_home(request)) {
    const SignalUpdate& signal = *request.signal;
    if (auto signalled = change_own(request.call, *storage_->device_signals, signal.index, signal.op, signal.value);
        !signalled)
      return std::move(signalled.error());
  } else if (request.signal != nullptr) {
    const transport::ExposedRegion& signals = request.exposed_region == 0 ? exposed_region_ : barrier_exposed_region_;
    apply_signal(signals, request.signal->index, request.signal->op, request.signal->value);
  }
  if (request.counter != nullptr) count(*request.counter);
  return Ticket{};
}

// ---- Words ----

/// The caller's memory for signals or counters, zeroed: what the host reads of it.
Result<std::span<std::uint64_t>> WindowState::take_words(const char* what, std::span<std::uint64_t> words, Pages& shown,
                                                         std::optional<transport::MirroredWords>& mirrored) {
  if (!gpus_ || words.empty() || !is_on_device(words.data())) {
    std::fill(words.begin(), words.end(), 0);
    return words;
  }
  const auto device = memory::check_usable(std::as_bytes(words));
  if (!device) return Error(device.status(), fmt::format("{}: {}", what, device.error().message()));
  if (reinterpret_cast<std::uintptr_t>(words.data()) % sizeof(std::uint64_t) != 0)
    return Error(Status::invalid, fmt::format("{}: words of 8 bytes in memory of a GPU must be aligned to 8", what));
  const std::vector<std::uint64_t> zeros(words.size());
  if (auto zeroed = copy_at_home(what, words.data(), zeros.data(), words.size_bytes()); !zeroed)
    return std::move(zeroed.error());
  auto pages = Pages::open_words(words.size());
  if (!pages) return std::move(pages.error());
  shown = std::move(*pages);
  const transport::ProgressGuard hold(engine_.progress_lock());
  if (auto ready = engine_.device_words().prepare(*device); !ready) return std::move(ready.error());
  mirrored.emplace(words, *device, shown.words());
  return shown.words();
}

/// A change of this rank's own word: the value that was there, once the word is in the GPU's memory.
template <typename Begin>
Result<std::uint64_t> WindowState::await_own(const char* call, Begin&& begin) {
  const auto own = std::make_shared<transport::OwnWord>();
  {
    const transport::ProgressGuard hold(engine_.progress_lock());
    begin(transport::DeviceWords::Waiter{.own = own});
  }
  // Acquire: pairs with the pass that found it over.
  const auto over = [&] { return own->over.load(std::memory_order_acquire); };
  if (!engine_.wait_until(over, nanoseconds({}))) {
    return Error(Status::timeout, fmt::format("{}: the GPU has not stored a word for so long", call),
                 {.peer = world_.rank, .operation = call});
  }
  if (own->good) return own->before;
  return Error(Status::io, fmt::format("{}: the GPU failed", call), {.peer = world_.rank, .operation = call});
}

Result<void> WindowState::change_own(const char* call, transport::MirroredWords& words, std::size_t index, SignalOp op,
                                     std::uint64_t value) {
  auto changed = await_own(call, [&](transport::DeviceWords::Waiter waiter) {
    transport::apply_signal(words.latest(), index, op, value);
    engine_.device_words().write(words, index, std::move(waiter));
  });
  return changed ? Result<void>() : Result<void>(std::move(changed.error()));
}

Result<Ticket> WindowState::atomic_at_home(const char* call, std::size_t offset, std::uint8_t code,
                                           const transport::wire::AtomicBody& body, void* before) {
  std::byte* const word = find_word(exposed_region_, offset, body.width);
  if (word == nullptr) {
    return Error(Status::invalid, fmt::format("{}: the word at offset {} is not aligned in memory", call, offset),
                 {.peer = world_.rank, .operation = call});
  }
  transport::wire::AtomicBody asked = body;
  asked.request = before != nullptr ? 1 : 0;  // what was there is wanted
  auto held = await_own(call, [&](transport::DeviceWords::Waiter waiter) {
    engine_.device_words().change(word, exposed_region_.device, code, asked, std::move(waiter));
  });
  if (!held) return std::move(held.error());
  if (before != nullptr) std::memcpy(before, &*held, body.width);
  return Ticket{};
}

Result<void> WindowState::reset_signal(std::size_t index) {
  if (storage_->device_signals) return change_own("reset_signal", *storage_->device_signals, index, SignalOp::set, 0);
  {
    const transport::ProgressGuard hold(engine_.progress_lock());
    apply_signal(exposed_region_, index, SignalOp::set, 0);
  }
  wake_own();
  return {};
}

Result<void> WindowState::reset_counter(std::size_t index) {
  if (storage_->device_counters)
    return change_own("reset_counter", *storage_->device_counters, index, SignalOp::set, 0);
  std::atomic_ref<std::uint64_t>(counters_[index]).store(0, std::memory_order_release);
  return {};
}

}  // namespace railyard::window_detail
