#include "accelerator/cuda_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>

#include "base/shared_library.hpp"

namespace railyard::accelerator::cuda {

namespace {

constexpr const char* kLibraryName = "libcuda.so.1";

class Finder {
 public:
  explicit Finder(void* object) : object_(object) {}

  template <typename Call>
  bool want(const char* name, Call& call) {
    call = reinterpret_cast<Call>(::dlsym(object_, name));
    return call != nullptr;
  }
  template <typename Call>
  void need(const char* name, Call& call) {
    if (!want(name, call) && missing_ == nullptr) missing_ = name;
  }
  const char* missing() const { return missing_; }

 private:
  void* object_;
  const char* missing_ = nullptr;
};

void find_devices(Finder& finder, Library& calls) {
  finder.need("cuInit", calls.init);
  finder.need("cuDriverGetVersion", calls.driver_version);
  finder.need("cuGetErrorName", calls.error_name);
  finder.need("cuDeviceGetCount", calls.device_count);
  finder.need("cuDeviceGet", calls.device_get);
  // The second one tells the parts of a divided GPU apart.
  if (!finder.want("cuDeviceGetUuid_v2", calls.device_uuid)) finder.need("cuDeviceGetUuid", calls.device_uuid);
  finder.need("cuDeviceGetPCIBusId", calls.device_bus_id);
  finder.need("cuDeviceGetAttribute", calls.device_attribute);
  finder.need("cuDevicePrimaryCtxRetain", calls.primary_retain);
  finder.need("cuDevicePrimaryCtxGetState", calls.primary_state);
  finder.need("cuCtxPushCurrent_v2", calls.context_push);
  finder.need("cuCtxPopCurrent_v2", calls.context_pop);
  finder.need("cuCtxGetCurrent", calls.context_current);
  finder.need("cuCtxGetStreamPriorityRange", calls.context_priorities);
  finder.need("cuThreadExchangeStreamCaptureMode", calls.exchange_capture_mode);
}

void find_memory(Finder& finder, Library& calls) {
  finder.need("cuPointerGetAttributes", calls.pointer_attributes);
  finder.need("cuIpcGetMemHandle", calls.ipc_get);
  finder.need("cuIpcOpenMemHandle_v2", calls.ipc_open);
  finder.need("cuIpcCloseMemHandle", calls.ipc_close);
  finder.need("cuDeviceGetP2PAttribute", calls.p2p_attribute);
  finder.need("cuMemGetAllocationGranularity", calls.memory_granularity);
  finder.need("cuMemCreate", calls.memory_create);
  finder.need("cuMemRetainAllocationHandle", calls.memory_retain);
  finder.need("cuMemRelease", calls.memory_release);
  finder.need("cuMemExportToShareableHandle", calls.memory_export);
  finder.need("cuMemImportFromShareableHandle", calls.memory_import);
  finder.need("cuMemGetAllocationPropertiesFromHandle", calls.memory_properties);
  finder.need("cuMemAddressReserve", calls.address_reserve);
  finder.need("cuMemAddressFree", calls.address_free);
  finder.need("cuMemMap", calls.memory_map);
  finder.need("cuMemUnmap", calls.memory_unmap);
  finder.need("cuMemSetAccess", calls.memory_access);
  finder.want("cuMemGetHandleForAddressRange", calls.range_handle);
  finder.want("cuFlushGPUDirectRDMAWrites", calls.flush_rdma_writes);
  finder.need("cuMemAlloc_v2", calls.device_allocate);
  finder.need("cuMemFree_v2", calls.device_free);
  finder.need("cuMemHostAlloc", calls.host_allocate);
  finder.need("cuMemFreeHost", calls.host_free);
  finder.need("cuMemHostRegister_v2", calls.host_register);
  finder.need("cuMemHostUnregister", calls.host_unregister);
  finder.need("cuMemHostGetDevicePointer_v2", calls.host_device_address);
}

void find_streams(Finder& finder, Library& calls) {
  finder.need("cuStreamCreateWithPriority", calls.stream_create);
  finder.need("cuStreamDestroy_v2", calls.stream_destroy);
  finder.need("cuStreamQuery", calls.stream_query);
  finder.want("cuStreamBatchMemOp_v2", calls.stream_writes);
  finder.need("cuMemcpyAsync", calls.copy);
  finder.need("cuEventCreate", calls.event_create);
  finder.need("cuEventDestroy_v2", calls.event_destroy);
  finder.need("cuEventRecord", calls.event_record);
  finder.need("cuEventQuery", calls.event_query);
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
  void* const object = open_shared_library(kLibraryName);
  if (object == nullptr) {
    const char* const why = ::dlerror();
    return Error(Status::not_found, fmt::format("there is no {} here ({}): install the NVIDIA driver to use its GPUs",
                                                kLibraryName, why == nullptr ? "unknown" : why));
  }
  Library calls;
  Finder finder(object);
  find_devices(finder, calls);
  find_memory(finder, calls);
  find_streams(finder, calls);
  if (finder.missing() != nullptr) {
    return Error(Status::unsupported, fmt::format("{} here has no {}: install a driver of CUDA 11.4 or later",
                                                  kLibraryName, finder.missing()));
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
