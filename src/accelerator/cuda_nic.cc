/// What NICs need: dma-buf descriptors of device memory, and writes that become visible to kernels.
#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "accelerator/cuda.hpp"

namespace railyard::accelerator::cuda {

bool CudaDriver::has_dma_bufs(int device) {
  return is_device(device) && calls_.range_handle != nullptr && attribute(device, kAttributeDmaBuf) != 0;
}

Result<DmaBuf> CudaDriver::dma_buf(std::span<std::byte> memory) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = as_address(memory.data());
  const auto found = memory.empty() ? std::nullopt : find(memory.data());
  if (!found) return Error(Status::invalid, "a dma-buf descriptor is of device memory; this is not");
  if (memory.size() > found->base + found->bytes - begin) {
    return Error(Status::out_of_range, "the memory ends before the range that a dma-buf descriptor is wanted of");
  }
  if (!has_dma_bufs(found->device)) {
    return Error(Status::unsupported, fmt::format("GPU {} ({}) has no dma-buf descriptors: its driver must be the open "
                                                  "kernel module, with CUDA 11.7 or later",
                                                  found->device, bus_id(found->device)));
  }
  auto made = context(found->device);
  if (!made) return std::move(made.error());
  const Current current(calls_, *made);
  // Whole pages: what lies beside the memory in the first and the last is not registered with it.
  const Address first = begin / page * page;
  const Address last = (begin + memory.size() + page - 1) / page * page;
  int descriptor = -1;
  Code code = current.code();
  if (code == kSuccess) code = calls_.range_handle(&descriptor, first, last - first, kRangeHandleDmaBuf, 0);
  if (code != kSuccess) {
    return error(code, "cuMemGetHandleForAddressRange", found->device, "NICs cannot reach this memory directly");
  }
  return DmaBuf{Fd(descriptor), begin - first};
}

NicWrites CudaDriver::nic_writes(int device) {
  if (!is_device(device) || attribute(device, kAttributeRdmaWritesOrdering) >= kOrderingOwner)
    return NicWrites::in_order;
  const bool flushes =
      calls_.flush_rdma_writes != nullptr && (attribute(device, kAttributeRdmaFlushOptions) & kFlushOptionHost) != 0;
  return flushes ? NicWrites::by_flush : NicWrites::by_read;
}

Result<void> CudaDriver::flush_writes(int device) {
  auto made = context(device);
  if (!made) return std::move(made.error());
  if (calls_.flush_rdma_writes == nullptr) {
    return Error(Status::unsupported, "this CUDA driver has no cuFlushGPUDirectRDMAWrites: read the last write back");
  }
  const Current current(calls_, *made);
  Code code = current.code();
  if (code == kSuccess) code = calls_.flush_rdma_writes(kFlushTargetCurrentContext, kFlushToOwner);
  if (code != kSuccess) return error(code, "cuFlushGPUDirectRDMAWrites", device, "the last write is read back instead");
  return {};
}

}  // namespace railyard::accelerator::cuda
