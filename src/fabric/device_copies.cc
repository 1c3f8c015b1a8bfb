#include "fabric/device_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.hpp"

namespace railyard::fabric {

Result<DeviceCopies::Queue*> DeviceCopies::queue_of(int device) {
  const auto index = static_cast<std::size_t>(device);
  if (device < 0 || index >= queues_.size() || !queues_[index].warm)
    return Error(Status::invalid, fmt::format("copies on GPU {} were not prepared", device));
  return &queues_[index];
}

Result<void> DeviceCopies::allocate_bounces(accelerator::Driver& driver) {
  if (pinned_ != nullptr) return {};
  auto pinned = driver.allocate_pinned(most_bounces_ * kBounceBytes);
  if (!pinned) return std::move(pinned.error());
  pinned_ = std::move(*pinned);
  for (std::size_t i = most_bounces_; i-- > 0;) free_.push_back(pinned_->memory().data() + i * kBounceBytes);
  return {};
}

Result<void> DeviceCopies::prepare(int device) {
  accelerator::Driver* const driver = accelerator::loaded_driver();
  if (driver == nullptr || device < 0)
    return Error(Status::unsupported,
                 "device memory: there is no GPU driver in this process. Memory of a GPU needs libcuda.so.1, started "
                 "by the program (cuInit, or any call of the CUDA runtime), and RAILYARD_GPU not off");
  const auto index = static_cast<std::size_t>(device);
  if (queues_.size() <= index) queues_.resize(index + 1);
  Queue& queue = queues_[index];
  if (queue.warm) return {};
  if (auto allocated = allocate_bounces(*driver); !allocated) return allocated;
  if (queue.queue == nullptr) {
    auto opened = driver->open_queue(device);
    if (!opened) return std::move(opened.error());
    queue.queue = std::move(*opened);
  }
  auto begun = queue.queue->warm_up();
  if (!begun) return std::move(begun.error());
  if (wait({device, *begun}) != State::done) return Error(Status::io, fmt::format("GPU {} makes no copy", device));
  queue.warm = true;
  return {};
}

Result<DeviceCopies::Ticket> DeviceCopies::copy(int device, void* to, const void* from, std::size_t bytes) {
  auto queue = queue_of(device);
  if (!queue) return std::move(queue.error());
  auto number = (*queue)->queue->copy(to, from, bytes);
  if (!number) return std::move(number.error());
  return Ticket{device, *number};
}

Result<DeviceCopies::Ticket> DeviceCopies::store(int device, void* to, std::uint64_t value, bool with_next) {
  auto queue = queue_of(device);
  if (!queue) return std::move(queue.error());
  auto number = (*queue)->queue->store(to, value, with_next);
  if (!number) return std::move(number.error());
  return Ticket{device, *number};
}

DeviceCopies::State DeviceCopies::state(const Ticket& ticket) {
  Queue& queue = queues_[static_cast<std::size_t>(ticket.device)];
  if (queue.done >= ticket.number) return State::done;
  if (queue.failed) return State::failed;
  const auto completed = queue.queue->completed();
  if (!completed) {
    log_error("copies on GPU {}: {}", ticket.device, completed.error().text());
    queue.failed = true;
    return State::failed;
  }
  queue.done = *completed;
  return queue.done >= ticket.number ? State::done : State::under_way;
}

DeviceCopies::State DeviceCopies::wait(const Ticket& ticket) {
  for (State now = state(ticket);; now = state(ticket)) {
    if (now != State::under_way) return now;
    std::this_thread::yield();
  }
}

Result<void> DeviceCopies::copy_now(void* to, int to_device, const void* from, int from_device, std::size_t bytes) {
  const int device = to_device >= 0 ? to_device : from_device;
  if (auto ready = prepare(device); !ready) return ready;
  const auto run = [&](void* target, const void* source, std::size_t size) -> Result<void> {
    auto ticket = copy(device, target, source, size);
    if (!ticket) return std::move(ticket.error());
    if (wait(*ticket) == State::done) return {};
    return Error(Status::io, fmt::format("a copy of {} bytes on GPU {}: the GPU failed", size, device));
  };
  if (to_device >= 0 && from_device >= 0) return run(to, from, bytes);
  std::byte* const bounce = take_bounce();
  if (bounce == nullptr) return Error(Status::no_memory, "there is no pinned memory to copy through");
  Result<void> result;
  for (std::size_t at = 0; at < bytes && result; at += kBounceBytes) {
    const std::size_t size = std::min(bytes - at, kBounceBytes);
    auto* const target = static_cast<std::byte*>(to) + at;
    const auto* const source = static_cast<const std::byte*>(from) + at;
    if (to_device >= 0) {
      std::memcpy(bounce, source, size);
      result = run(target, bounce, size);
    } else {
      result = run(bounce, source, size);
      if (result) std::memcpy(target, bounce, size);
    }
  }
  give_bounce(bounce);
  return result;
}

std::byte* DeviceCopies::take_bounce() {
  if (free_.empty()) return nullptr;
  std::byte* const bounce = free_.back();
  free_.pop_back();
  return bounce;
}

}  // namespace railyard::fabric
