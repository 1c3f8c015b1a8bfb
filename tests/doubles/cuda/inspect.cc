/// What tests see and set beside the driver's calls.
#include <algorithm>
#include <cstring>

#include "doubles/cuda/core.hpp"

using cuda_double::Address;
using cuda_double::RangeKind;
using cuda_double::state;

CUDA_DOUBLE_CALL void cuda_double_live(CudaDoubleLive* live) {
  const std::lock_guard lock(state().mutex);
  const auto count = [&](auto wanted) {
    return static_cast<std::size_t>(
        std::ranges::count_if(state().ranges, [&](const auto& entry) { return wanted(entry.second); }));
  };
  const auto managed = static_cast<std::size_t>(
      std::ranges::count_if(state().hosts, [](const auto& entry) { return entry.second.managed; }));
  live->allocations = managed + count([](const auto& range) { return range.kind == RangeKind::allocated; });
  live->mappings = count([](const auto& range) { return range.kind != RangeKind::allocated; });
  live->reservations = state().reservations.size();
  live->handles = state().handles.size();
  live->pinned = state().hosts.size() - managed;
  live->streams = state().streams.size();
  live->events = state().events.size();
  live->nic_mappings = state().nic_mappings.size();
}

CUDA_DOUBLE_CALL int cuda_double_peek(void* to, const void* device, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  const auto reached = state().reach(reinterpret_cast<Address>(device), bytes, false);
  if (!reached || !reached->block) return 0;
  std::memcpy(to, reached->bytes, bytes);
  return 1;
}

CUDA_DOUBLE_CALL int cuda_double_poke(void* device, const void* from, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  const auto reached = state().reach(reinterpret_cast<Address>(device), bytes, false);
  if (!reached || !reached->block) return 0;
  std::memcpy(reached->bytes, from, bytes);
  return 1;
}

CUDA_DOUBLE_CALL void* cuda_double_reach(const void* device) {
  const std::lock_guard lock(state().mutex);
  const auto reached = state().reach(reinterpret_cast<Address>(device), 1, false);
  return reached && reached->block ? reached->bytes : nullptr;
}

CUDA_DOUBLE_CALL std::uint64_t cuda_double_copies() { return state().copies.load(); }

CUDA_DOUBLE_CALL void cuda_double_set_copy_us(unsigned microseconds) { state().copy_us = microseconds; }

CUDA_DOUBLE_CALL void cuda_double_fail_copy(std::uint64_t number) {
  state().failing_copy = number == 0 ? 0 : state().copies.load() + number;
}

CUDA_DOUBLE_CALL void cuda_double_mend() {
  for (auto& failure : state().failure) failure = railyard::accelerator::cuda::kSuccess;
}

CUDA_DOUBLE_CALL void cuda_double_kernel(int runs) { state().kernel = runs != 0; }

CUDA_DOUBLE_CALL std::uint64_t cuda_double_held_up() { return state().held_up.load(); }
