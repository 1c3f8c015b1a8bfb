/// NICs that reach device memory by dma-buf descriptors, and when the device sees what they have written.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "doubles/cuda/core.hpp"

namespace cuda_double {

void State::land(int device, const void* nic, const NicMapping* mapping) {
  std::erase_if(held_writes, [&](const HeldWrite& write) {
    if (write.mapping->block->device != device || (nic != nullptr && write.mapping->nic != nic) ||
        (mapping != nullptr && write.mapping != mapping))
      return false;
    std::memcpy(write.mapping->block->secret + write.mapping->start + write.at, write.bytes.data(), write.bytes.size());
    return true;
  });
}

CUDA_DOUBLE_CALL Code cuFlushGPUDirectRDMAWrites(int target, int scope) {
  State& all = state();
  const int device = current_device();
  if (device < 0) return cuda::kInvalidContext;
  if (target != cuda::kFlushTargetCurrentContext || scope != cuda::kFlushToOwner) return cuda::kInvalidValue;
  if (!all.rdma_flush) return cuda::kNotSupported;
  ++all.flushes;
  const std::lock_guard lock(all.mutex);
  all.land(device);
  return cuda::kSuccess;
}

}  // namespace cuda_double

using cuda_double::NicMapping;
using cuda_double::State;
using cuda_double::state;

CUDA_DOUBLE_CALL void cuda_double_set_dma_bufs(int has) { state().dma_bufs = has != 0; }

CUDA_DOUBLE_CALL void cuda_double_set_rdma(int ordering, int flush) {
  state().rdma_ordering = ordering;
  state().rdma_flush = flush != 0;
}

CUDA_DOUBLE_CALL std::uint64_t cuda_double_flushes() { return state().flushes.load(); }

CUDA_DOUBLE_CALL std::size_t cuda_double_unseen() {
  const std::lock_guard lock(state().mutex);
  std::size_t bytes = 0;
  for (const cuda_double::HeldWrite& write : state().held_writes) bytes += write.bytes.size();
  return bytes;
}

CUDA_DOUBLE_CALL std::uint64_t cuda_double_freed_under_nic() { return state().freed_under_nic.load(); }

CUDA_DOUBLE_CALL void* cuda_double_nic_attach(const void* nic, int descriptor, std::uint64_t offset,
                                              std::size_t bytes) {
  State& all = state();
  struct stat facts {};
  const off_t start = ::lseek(descriptor, 0, SEEK_CUR);
  if (start < 0 || ::fstat(descriptor, &facts) != 0) return nullptr;
  const std::lock_guard lock(all.mutex);
  const auto range =
      std::ranges::find(all.ranges, facts.st_ino, [](const auto& one) { return one.second.block->inode; });
  const std::size_t first = static_cast<std::size_t>(start) + offset;
  if (range == all.ranges.end() || first > range->second.block->bytes || bytes > range->second.block->bytes - first)
    return nullptr;
  auto* const mapping = new NicMapping{nic, range->second.block, first};
  ++mapping->block->nic_mappings;
  all.nic_mappings.insert(mapping);
  return mapping;
}

CUDA_DOUBLE_CALL void cuda_double_nic_detach(void* handle) {
  State& all = state();
  auto* const mapping = static_cast<NicMapping*>(handle);
  const std::lock_guard lock(all.mutex);
  all.land(mapping->block->device, nullptr, mapping);
  --mapping->block->nic_mappings;
  all.nic_mappings.erase(mapping);
  delete mapping;
}

CUDA_DOUBLE_CALL void cuda_double_nic_drain(const void* nic) {
  const std::lock_guard lock(state().mutex);
  for (int device = 0; device < state().devices; ++device) state().land(device, nic);
}

CUDA_DOUBLE_CALL void cuda_double_nic_write(void* handle, std::size_t at, const void* from, std::size_t bytes) {
  State& all = state();
  const auto* const mapping = static_cast<const NicMapping*>(handle);
  const auto* const source = static_cast<const std::byte*>(from);
  const std::lock_guard lock(all.mutex);
  all.held_writes.push_back({mapping, at, {source, source + bytes}});
  if (all.rdma_ordering >= cuda_double::cuda::kOrderingOwner) all.land(mapping->block->device);
}

CUDA_DOUBLE_CALL void cuda_double_nic_read(void* handle, std::size_t at, void* to, std::size_t bytes) {
  State& all = state();
  const auto* const mapping = static_cast<const NicMapping*>(handle);
  const std::lock_guard lock(all.mutex);
  all.land(mapping->block->device, mapping->nic);
  std::memcpy(to, mapping->block->secret + mapping->start + at, bytes);
}
