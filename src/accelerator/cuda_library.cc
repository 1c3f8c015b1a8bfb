#include "accelerator/cuda_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>

#include "base/shared_library.hpp"

namespace railyard::accelerator::cuda {

namespace {

constexpr const char* kLibraryName = "libcuda.so.1";

void find_devices(LibraryCalls& library, Library& calls) {
  library.need("cuInit", calls.init);
  library.need("cuDriverGetVersion", calls.driver_version);
  library.need("cuGetErrorName", calls.error_name);
  library.need("cuDeviceGetCount", calls.device_count);
  library.need("cuDeviceGet", calls.device_get);
  // The second one tells the parts of a divided GPU apart.
  if (!library.find("cuDeviceGetUuid_v2", calls.device_uuid)) library.need("cuDeviceGetUuid", calls.device_uuid);
  library.need("cuDeviceGetPCIBusId", calls.device_bus_id);
  library.need("cuDeviceGetAttribute", calls.device_attribute);
  library.need("cuDevicePrimaryCtxRetain", calls.primary_retain);
  library.need("cuDevicePrimaryCtxGetState", calls.primary_state);
  library.need("cuCtxPushCurrent_v2", calls.context_push);
  library.need("cuCtxPopCurrent_v2", calls.context_pop);
  library.need("cuCtxGetCurrent", calls.context_current);
  library.need("cuCtxGetStreamPriorityRange", calls.context_priorities);
  library.need("cuThreadExchangeStreamCaptureMode", calls.exchange_capture_mode);
}

void find_memory(LibraryCalls& library, Library& calls) {
  library.need("cuPointerGetAttributes", calls.pointer_attributes);
  library.need("cuIpcGetMemHandle", calls.ipc_get);
  library.need("cuIpcOpenMemHandle_v2", calls.ipc_open);
  library.need("cuIpcCloseMemHandle", calls.ipc_close);
  library.need("cuDeviceGetP2PAttribute", calls.p2p_attribute);
  library.need("cuMemGetAllocationGranularity", calls.memory_granularity);
  library.need("cuMemCreate", calls.memory_create);
  library.need("cuMemRetainAllocationHandle", calls.memory_retain);
  library.need("cuMemRelease", calls.memory_release);
  library.need("cuMemExportToShareableHandle", calls.memory_export);
  library.need("cuMemImportFromShareableHandle", calls.memory_import);
  library.need("cuMemGetAllocationPropertiesFromHandle", calls.memory_properties);
  library.need("cuMemAddressReserve", calls.address_reserve);
  library.need("cuMemAddressFree", calls.address_free);
  library.need("cuMemMap", calls.memory_map);
  library.need("cuMemUnmap", calls.memory_unmap);
  library.need("cuMemSetAccess", calls.memory_access);
  library.find("cuMemGetHandleForAddressRange", calls.range_handle);
  library.find("cuFlushGPUDirectRDMAWrites", calls.flush_rdma_writes);
  library.need("cuMemAlloc_v2", calls.device_allocate);
  library.need("cuMemFree_v2", calls.device_free);
  library.need("cuMemHostAlloc", calls.host_allocate);
  library.need("cuMemFreeHost", calls.host_free);
  library.need("cuMemHostRegister_v2", calls.host_register);
  library.need("cuMemHostUnregister", calls.host_unregister);
  library.need("cuMemHostGetDevicePointer_v2", calls.host_device_address);
}

void find_streams(LibraryCalls& library, Library& calls) {
  library.need("cuStreamCreateWithPriority", calls.stream_create);
  library.need("cuStreamDestroy_v2", calls.stream_destroy);
  library.need("cuStreamQuery", calls.stream_query);
  library.find("cuStreamBatchMemOp_v2", calls.stream_writes);
  library.need("cuMemcpyAsync", calls.copy);
  library.need("cuEventCreate", calls.event_create);
  library.need("cuEventDestroy_v2", calls.event_destroy);
  library.need("cuEventRecord", calls.event_record);
  library.need("cuEventQuery", calls.event_query);
}

}  // namespace

bool is_loaded() {
  void* const object = ::dlopen(kLibraryName, RTLD_LAZY | RTLD_NOLOAD);
  if (object == nullptr) return false;
  ::dlclose(object);
  return true;
}

bool is_started(Look look) {
  // Relaxed: a function's address, the same whoever finds it.
  static std::atomic<Code (*)(int*)> count{nullptr};
  auto* call = count.load(std::memory_order_relaxed);
  if (call == nullptr) {
    // Looking for a library that is not there searches the file system: not for every message.
    if (look == Look::no || (look == Look::in_the_process && !is_loaded())) return false;
    const KeepSignals keep;
    void* const object = open_shared_library(kLibraryName);
    if (object == nullptr) return false;
    call = reinterpret_cast<Code (*)(int*)>(::dlsym(object, "cuDeviceGetCount"));
    if (call == nullptr) return false;
    count.store(call, std::memory_order_relaxed);
  }
  int devices = 0;
  return call(&devices) == kSuccess;
}

Result<Library> load() {
  const KeepSignals keep;  // starting the driver may take signals over as well as loading it
  LibraryCalls library(kLibraryName);
  if (!library) {
    return Error(Status::not_found, fmt::format("there is no {} here ({}): install the NVIDIA driver to use its GPUs",
                                                kLibraryName, library.why()));
  }
  Library calls;
  find_devices(library, calls);
  find_memory(library, calls);
  find_streams(library, calls);
  if (library.missing() != nullptr) {
    return Error(Status::unsupported, fmt::format("{} here has no {}: install a driver of CUDA 11.4 or later",
                                                  kLibraryName, library.missing()));
  }
  if (const Code code = calls.init(0); code != kSuccess) {
    const char* name = nullptr;
    calls.error_name(code, &name);
    return Error(code == kNoDevice ? Status::not_found : Status::io,
                 fmt::format("cuInit: {}: GPUs are not used; `nvidia-smi` shows whether the driver works",
                             name == nullptr ? "an error without a name" : name));
  }
  return calls;
}

}  // namespace railyard::accelerator::cuda
