/// Memory between processes: IPC handles, memory that its owner maps, dma-buf descriptors.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

#include "doubles/cuda/core.hpp"

namespace cuda_double {

namespace {

constexpr std::uint64_t kMagic = 0x637564612d697063;

/// What an IPC handle holds.
struct IpcName {
  std::uint64_t magic = kMagic;
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(IpcName) <= sizeof(cuda::IpcHandle));

bool is_mapping_size(std::size_t bytes) { return bytes != 0 && bytes % kGranularity == 0; }

/// With the mutex held: whether [address, address + bytes) lies in one reservation.
bool is_reserved(const State& all, Address address, std::size_t bytes) {
  auto after = all.reservations.upper_bound(address);
  if (after == all.reservations.begin()) return false;
  const auto found = std::prev(after);
  return address - found->first < found->second && bytes <= found->second - (address - found->first);
}

/// A descriptor with a position of its own.
int open_again(int descriptor) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", descriptor);
  return ::open(path.data(), O_RDWR | O_CLOEXEC);
}

}  // namespace

CUDA_DOUBLE_CALL Code cuIpcGetMemHandle(cuda::IpcHandle* handle, Address address) {
  if (current_device() < 0) return cuda::kInvalidContext;
  const std::lock_guard lock(state().mutex);
  const auto range = state().ranges.find(address);
  if (range == state().ranges.end() || range->second.kind != RangeKind::allocated) return cuda::kInvalidValue;
  const Block& block = *range->second.block;
  const IpcName name{
      .pid = ::getpid(), .descriptor = block.descriptor, .inode = block.inode, .bytes = range->second.bytes};
  handle->bytes.fill(std::byte{0});
  std::memcpy(handle->bytes.data(), &name, sizeof(name));
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuIpcOpenMemHandle_v2(Address* address, cuda::IpcHandle handle, unsigned flags) {
  if (kernel_holds_up()) return cuda::kNotReady;
  if (current_device() < 0) return cuda::kInvalidContext;
  if (flags != cuda::kIpcLazyPeerAccess) return cuda::kInvalidValue;
  State& all = state();
  IpcName name;
  std::memcpy(&name, handle.bytes.data(), sizeof(name));
  if (name.magic != kMagic) return cuda::kInvalidValue;
  if (name.pid == ::getpid()) return cuda::kInvalidContext;
  const std::lock_guard lock(all.mutex);
  for (auto& [base, range] : all.ranges) {
    if (range.kind == RangeKind::opened && range.opener == current_device() && range.name.bytes == handle.bytes) {
      return cuda::kAlreadyMapped;
    }
  }
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/fd/%d", name.pid, name.descriptor);
  const int descriptor = ::open(path.data(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return cuda::kMapFailed;
  auto block = Block::adopt(descriptor);
  ::close(descriptor);
  if (!block || block->inode != name.inode || name.bytes > block->bytes) return cuda::kMapFailed;
  const Address base = reserve(name.bytes);
  if (base == 0) return cuda::kOutOfMemory;
  block->id = all.next_id++;
  all.ranges[base] = Range{.bytes = name.bytes,
                           .block = block,
                           .kind = RangeKind::opened,
                           .id = all.next_id++,
                           .name = handle,
                           .opener = current_device()};
  *address = base;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuIpcCloseMemHandle(Address address) {
  if (current_device() < 0) return cuda::kInvalidContext;
  const std::lock_guard lock(state().mutex);
  const auto range = state().ranges.find(address);
  if (range == state().ranges.end() || range->second.kind != RangeKind::opened) return cuda::kInvalidValue;
  unreserve(address, range->second.bytes);
  state().ranges.erase(range);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemGetAllocationGranularity(std::size_t* bytes, const cuda::AllocationProperties* /*wanted*/,
                                                    int /*option*/) {
  *bytes = kGranularity;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemCreate(cuda::MemoryHandle* handle, std::size_t bytes,
                                  const cuda::AllocationProperties* properties, unsigned long long flags) {
  State& all = state();
  if (!is_mapping_size(bytes) || flags != 0 || properties->type != cuda::kAllocationPinned ||
      properties->location.type != cuda::kLocationDevice || properties->location.id >= all.devices) {
    return cuda::kInvalidValue;
  }
  auto block = Block::create(bytes, properties->location.id);
  if (!block) return cuda::kOutOfMemory;
  block->handle_types = properties->handle_types;
  block->for_nics = properties->rdma_capable != 0;
  const std::lock_guard lock(all.mutex);
  block->id = all.next_id++;
  *handle = all.next_id++;
  all.handles[*handle] = {block, 1};
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemRelease(cuda::MemoryHandle handle) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().handles.find(handle);
  if (found == state().handles.end()) return cuda::kInvalidValue;
  if (--found->second.count == 0) state().handles.erase(found);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemRetainAllocationHandle(cuda::MemoryHandle* handle, void* address) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto range = all.find(reinterpret_cast<Address>(address));
  if (range == all.ranges.end() || range->second.kind != RangeKind::mapped) return cuda::kInvalidValue;
  for (auto& [number, held] : all.handles) {
    if (held.block != range->second.block) continue;
    ++held.count;
    *handle = number;
    return cuda::kSuccess;
  }
  *handle = all.next_id++;
  all.handles[*handle] = {range->second.block, 1};
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemGetAllocationPropertiesFromHandle(cuda::AllocationProperties* properties,
                                                             cuda::MemoryHandle handle) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().handles.find(handle);
  if (found == state().handles.end()) return cuda::kInvalidValue;
  *properties = {};
  properties->type = cuda::kAllocationPinned;
  properties->handle_types = found->second.block->handle_types;
  properties->location = {cuda::kLocationDevice, found->second.block->device};
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemExportToShareableHandle(void* shareable, cuda::MemoryHandle handle, int type,
                                                   unsigned long long flags) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().handles.find(handle);
  if (found == state().handles.end() || flags != 0 || type != cuda::kHandlePosixDescriptor ||
      (found->second.block->handle_types & type) == 0) {
    return cuda::kInvalidValue;
  }
  const int descriptor = open_again(found->second.block->descriptor);
  if (descriptor < 0) return cuda::kOutOfMemory;
  std::memcpy(shareable, &descriptor, sizeof(descriptor));
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemImportFromShareableHandle(cuda::MemoryHandle* handle, void* shareable, int type) {
  State& all = state();
  if (type != cuda::kHandlePosixDescriptor) return cuda::kInvalidValue;
  auto block = Block::adopt(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)));
  if (!block || block->device >= all.devices) return cuda::kInvalidValue;
  block->handle_types = type;
  const std::lock_guard lock(all.mutex);
  block->id = all.next_id++;
  *handle = all.next_id++;
  all.handles[*handle] = {block, 1};
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemAddressReserve(Address* address, std::size_t bytes, std::size_t /*alignment*/,
                                          Address /*wanted*/, unsigned long long flags) {
  if (!is_mapping_size(bytes) || flags != 0) return cuda::kInvalidValue;
  *address = reserve(bytes);
  if (*address == 0) return cuda::kOutOfMemory;
  const std::lock_guard lock(state().mutex);
  state().reservations[*address] = bytes;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemAddressFree(Address address, std::size_t bytes) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.reservations.find(address);
  if (found == all.reservations.end() || found->second != bytes) return cuda::kInvalidValue;
  const auto range = all.ranges.lower_bound(address);
  if (range != all.ranges.end() && range->first < address + bytes) return cuda::kInvalidValue;  // still mapped
  unreserve(address, bytes);
  all.reservations.erase(found);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemMap(Address address, std::size_t bytes, std::size_t offset, cuda::MemoryHandle handle,
                               unsigned long long flags) {
  if (kernel_holds_up()) return cuda::kNotReady;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.handles.find(handle);
  if (found == all.handles.end() || !is_mapping_size(bytes) || offset != 0 || flags != 0 ||
      bytes > found->second.block->bytes || !is_reserved(all, address, bytes) ||
      all.find(address) != all.ranges.end()) {
    return cuda::kInvalidValue;
  }
  all.ranges[address] = Range{.bytes = bytes,
                              .block = found->second.block,
                              .kind = RangeKind::mapped,
                              .id = all.next_id++,
                              .accessible = false};
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemUnmap(Address address, std::size_t bytes) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto range = all.ranges.find(address);
  if (range == all.ranges.end() || range->second.kind != RangeKind::mapped || range->second.bytes != bytes) {
    return cuda::kInvalidValue;
  }
  if (range->second.block->nic_mappings != 0) ++all.freed_under_nic;
  all.ranges.erase(range);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemSetAccess(Address address, std::size_t bytes, const cuda::Access* access,
                                     std::size_t count) {
  if (kernel_holds_up()) return cuda::kNotReady;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto range = all.ranges.find(address);
  if (range == all.ranges.end() || range->second.kind != RangeKind::mapped || range->second.bytes != bytes) {
    return cuda::kInvalidValue;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].location.type != cuda::kLocationDevice || access[i].location.id >= all.devices) {
      return cuda::kInvalidDevice;
    }
    range->second.accessible = access[i].flags == cuda::kAccessReadWrite;
  }
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemGetHandleForAddressRange(void* handle, Address address, std::size_t bytes, int type,
                                                    unsigned long long flags) {
  constexpr std::size_t kHostPage = 4096;
  State& all = state();
  if (!all.dma_bufs) return cuda::kNotSupported;
  const std::lock_guard lock(all.mutex);
  const auto range = all.find(address);
  if (range != all.ranges.end() && !range->second.block->for_nics) return cuda::kNotSupported;
  if (range == all.ranges.end() || type != cuda::kRangeHandleDmaBuf || flags != 0 || address % kHostPage != 0 ||
      bytes % kHostPage != 0 || bytes > range->second.block->bytes - (address - range->first)) {
    return cuda::kInvalidValue;
  }
  const int descriptor = open_again(range->second.block->descriptor);
  if (descriptor < 0) return cuda::kOutOfMemory;
  ::lseek(descriptor, static_cast<off_t>(address - range->first), SEEK_SET);
  std::memcpy(handle, &descriptor, sizeof(descriptor));
  return cuda::kSuccess;
}

}  // namespace cuda_double
