/// Memory of GPUs in windows: what this process does to its own part.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/log.hpp"
#include "memory/location.hpp"
#include "window/window_state.hpp"

namespace railyard::window_detail {

bool WindowState::is_on_device(const void* memory) {
  memory::OwnStack::look();  // next time it may not come to this
  return memory::find_device(memory).has_value();
}

/// Between two places of this process, at least one of them on a GPU. Done when it returns.
Result<void> WindowState::copy_at_home(const char* call, void* to, const void* from, std::size_t bytes) {
  const auto to_device = memory::find_device(to);
  const auto from_device = memory::find_device(from);
  if (!to_device && !from_device) {
    std::memmove(to, from, bytes);
    return {};
  }
  const std::lock_guard lock(home_.copies_mutex);
  auto copied = home_.copies.copy_now(to, to_device ? to_device->device : -1, from,
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

Result<void> WindowState::zero(const char* what, std::span<std::byte> device_memory, int device) {
  const std::vector<std::byte> zeros(std::min<std::size_t>(device_memory.size(), fabric::DeviceCopies::kBounceBytes));
  const std::lock_guard lock(home_.copies_mutex);
  auto copied = home_.copies.copy_now(device_memory.data(), device, zeros.data(), -1, zeros.size());
  // What is zero already is copied behind itself.
  for (std::size_t done = zeros.size(); copied && done < device_memory.size();) {
    const std::size_t bytes = std::min(done, device_memory.size() - done);
    copied = home_.copies.copy_now(device_memory.data() + done, device, device_memory.data(), device, bytes);
    done += bytes;
  }
  if (copied) return {};
  return Error(copied.status(), fmt::format("{}: {}", what, copied.error().message()));
}

/// Memory of its own on a GPU, and all words that do not have another place.
Result<void> WindowState::take_device(std::size_t bytes, const WindowOptions& options) {
  const std::size_t signals = own_signals_ ? options.signals : 0;
  const std::size_t counters = options.counter_memory.data() == nullptr ? options.counters : 0;
  constexpr std::size_t kMost = SIZE_MAX / 64;
  if (bytes > kMost || counters > kMost)
    return Error(Status::no_memory, fmt::format("a window of {} bytes and {} counters on a GPU", bytes, counters));
  accelerator::Driver* const driver = accelerator::driver();
  if (driver == nullptr)
    return Error(Status::not_found,
                 fmt::format("device {}: there is no GPU here, or no driver for it", options.device));
  auto memory = driver->allocate(options.device, DeviceLayout(bytes, signals, counters).bytes);
  if (!memory) return std::move(memory.error());
  storage_->device_memory = std::move(*memory);
  gpus_ = true;
  on_device_ = true;
  exposed_region_.device = options.device;
  exposed_region_.memory = storage_->device_memory->memory().first(bytes);
  if (auto zeroed = zero("allocate", storage_->device_memory->memory(), options.device); !zeroed) return zeroed;
  // Without it peers go through the engine, as to memory that the caller brings.
  auto share = driver->find(exposed_region_.memory.data());
  auto shared = share ? driver->share(*share) : Result<std::unique_ptr<accelerator::Shared>>(Error(Status::not_found));
  if (shared && (*shared)->handle().kind == accelerator::ShareHandle::Kind::descriptor) {
    storage_->device_share = std::move(*shared);
  } else {
    log_debug("a window in memory of GPU {} that no peer can map", options.device);
  }
  return take_own_words(0);
}

// ---- Words ----

/// Signals and counters: where the caller wants them, or on the GPU of a window that lies there, or here.
Result<void> WindowState::place_words(const WindowOptions& options) {
  const bool own_counters = options.counter_memory.data() == nullptr;
  const bool own_device = storage_->device_memory != nullptr;
  const DeviceLayout layout(exposed_region_.memory.size(), own_signals_ ? options.signals : 0,
                            own_counters ? options.counters : 0);
  const auto words_at = [&](std::uint64_t at, std::size_t count) {
    return std::span(reinterpret_cast<std::uint64_t*>(storage_->device_memory->memory().data() + at), count);
  };
  if (!own_signals_ || own_device) {
    auto words = !own_signals_ ? take_words("signal_memory", options.signal_memory, storage_->own_signals,
                                            storage_->device_signals)
                               : mirror_words(words_at(layout.signals_at, options.signals),
                                              words_at(layout.signal_adds_at, options.signals), exposed_region_.device,
                                              storage_->own_signals, storage_->device_signals);
    if (!words) return std::move(words.error());
    exposed_region_.signals = *words;
    if (storage_->device_signals) exposed_region_.mirrored = &*storage_->device_signals;
  }
  if (!own_counters || own_device) {
    auto words =
        !own_counters
            ? take_words("counter_memory", options.counter_memory, storage_->own_counters, storage_->device_counters)
            : mirror_words(words_at(layout.counters_at, options.counters),
                           words_at(layout.counter_adds_at, options.counters), exposed_region_.device,
                           storage_->own_counters, storage_->device_counters);
    if (!words) return std::move(words.error());
    counters_ = *words;
    return {};
  }
  auto words = Pages::open_words(options.counters);
  if (!words) return std::move(words.error());
  storage_->own_counters = std::move(*words);
  counters_ = storage_->own_counters.words();
  return {};
}

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
  if (auto zeroed = zero(what, std::as_writable_bytes(words), *device); !zeroed) return std::move(zeroed.error());
  return mirror_words(words, {}, *device, shown, mirrored);
}

Result<std::span<std::uint64_t>> WindowState::mirror_words(std::span<std::uint64_t> words,
                                                           std::span<std::uint64_t> adds, int device, Pages& shown,
                                                           std::optional<transport::MirroredWords>& mirrored) {
  auto pages = Pages::open_words(words.size());
  if (!pages) return std::move(pages.error());
  shown = std::move(*pages);
  const transport::ProgressGuard hold(engine_.progress_lock());
  if (auto ready = engine_.exposed().words().prepare(device); !ready) return std::move(ready.error());
  mirrored.emplace(words, device, shown.words(), adds);
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
    words.apply(index, op, value);
    engine_.exposed().words().write(words, index, std::move(waiter));
  });
  return changed ? Result<void>() : Result<void>(std::move(changed.error()));
}

void WindowState::read_adds(const char* call, transport::MirroredWords& words, std::size_t index) {
  auto read = await_own(call, [&](transport::DeviceWords::Waiter waiter) {
    engine_.exposed().words().read(words, index, std::move(waiter));
  });
  if (!read) log_debug("{}", read.error().text());  // as it was seen last
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
    engine_.exposed().words().change(word, exposed_region_.device, code, asked, std::move(waiter));
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
