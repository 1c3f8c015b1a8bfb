/// Devices, contexts and errors.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "doubles/cuda/core.hpp"

namespace railyard::accelerator::cuda {
/// One for each device: its primary context.
struct ContextObject {
  int device = 0;
  int retained = 0;
};
}  // namespace railyard::accelerator::cuda

namespace cuda_double {

namespace {

cuda::ContextObject g_contexts[kMostDevices];
thread_local std::vector<cuda::CudaContext> t_stack;
thread_local int t_capture_mode = 0;

unsigned long number_of(const char* name, unsigned long otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == 0 ? otherwise : std::strtoul(text, nullptr, 10);
}

bool is_device(int device) { return state().started && device >= 0 && device < state().devices; }

}  // namespace

State& state() {
  static State* const only = new State;  // never destroyed: streams may run until the end
  return *only;
}

bool kernel_holds_up() {
  if (!state().kernel) return false;
  ++state().held_up;
  return true;
}

int current_device() { return t_stack.empty() || t_stack.back() == nullptr ? -1 : t_stack.back()->device; }

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

CUDA_DOUBLE_CALL Code cuInit(unsigned flags) {
  if (flags != 0) return cuda::kInvalidValue;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (all.started) return cuda::kSuccess;
  all.devices = static_cast<int>(std::min(number_of("CUDA_DOUBLE_DEVICES", 2), kMostDevices));
  if (all.devices == 0) return cuda::kNoDevice;
  all.copy_us = static_cast<unsigned>(number_of("CUDA_DOUBLE_COPY_US", 0));
  all.failing_copy = number_of("CUDA_DOUBLE_FAIL_COPY", 0);
  all.stream_writes = number_of("CUDA_DOUBLE_STREAM_WRITES", 1) != 0;
  all.p2p_atomics = number_of("CUDA_DOUBLE_P2P_ATOMICS", 1) != 0;
  all.version = static_cast<int>(number_of("CUDA_DOUBLE_VERSION", 13));
  all.rdma_ordering = static_cast<int>(number_of("CUDA_DOUBLE_RDMA_ORDERING", 0));
  all.rdma_flush = number_of("CUDA_DOUBLE_RDMA_FLUSH", 1) != 0;
  for (int device = 0; device < all.devices; ++device) g_contexts[device].device = device;
  all.started = true;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDriverGetVersion(int* version) {
  *version = state().version * 1000;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuGetErrorName(Code code, const char** name) {
  static constexpr struct {
    Code code;
    const char* name;
  } kNames[] = {{cuda::kSuccess, "CUDA_SUCCESS"},
                {cuda::kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                {cuda::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                {cuda::kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
                {cuda::kNoDevice, "CUDA_ERROR_NO_DEVICE"},
                {cuda::kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
                {cuda::kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
                {cuda::kMapFailed, "CUDA_ERROR_MAP_FAILED"},
                {cuda::kAlreadyMapped, "CUDA_ERROR_ALREADY_MAPPED"},
                {cuda::kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                {cuda::kNotReady, "CUDA_ERROR_NOT_READY"},
                {cuda::kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                {cuda::kNotPermitted, "CUDA_ERROR_NOT_PERMITTED"},
                {cuda::kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"}};
  for (const auto& known : kNames) {
    if (known.code == code) {
      *name = known.name;
      return cuda::kSuccess;
    }
  }
  *name = nullptr;
  return cuda::kInvalidValue;
}

CUDA_DOUBLE_CALL Code cuDeviceGetCount(int* count) {
  if (!state().started) return cuda::kNotInitialized;
  *count = state().devices;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDeviceGet(cuda::Device* device, int ordinal) {
  if (!is_device(ordinal)) return cuda::kInvalidDevice;
  *device = ordinal;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDeviceGetUuid_v2(cuda::Uuid* uuid, cuda::Device device) {
  if (!is_device(device)) return cuda::kInvalidDevice;
  uuid->bytes.fill(std::byte{0xd0});
  uuid->bytes.back() = static_cast<std::byte>(device);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDeviceGetName(char* name, int bytes, cuda::Device device) {
  if (!is_device(device)) return cuda::kInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(bytes), "GPU double");
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDeviceGetPCIBusId(char* text, int bytes, cuda::Device device) {
  if (!is_device(device)) return cuda::kInvalidDevice;
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", 0x1b + device);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDeviceGetAttribute(int* value, int attribute, cuda::Device device) {
  if (!is_device(device)) return cuda::kInvalidDevice;
  *value = 0;
  if (attribute == cuda::kAttributeStreamWrites64) *value = state().stream_writes ? 1 : 0;
  if (attribute == cuda::kAttributeRdmaMapped) *value = 1;
  if (attribute == cuda::kAttributeDmaBuf) *value = state().dma_bufs ? 1 : 0;
  if (attribute == cuda::kAttributeRdmaFlushOptions) *value = state().rdma_flush ? cuda::kFlushOptionHost : 0;
  if (attribute == cuda::kAttributeRdmaWritesOrdering) *value = state().rdma_ordering;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDeviceCanAccessPeer(int* can, cuda::Device device, cuda::Device peer) {
  if (!is_device(device) || !is_device(peer)) return cuda::kInvalidDevice;
  *can = device != peer ? 1 : 0;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDeviceGetP2PAttribute(int* value, int attribute, cuda::Device device, cuda::Device peer) {
  if (!is_device(device) || !is_device(peer) || device == peer) return cuda::kInvalidDevice;
  *value = attribute == cuda::kP2pNativeAtomics && state().p2p_atomics ? 1 : 0;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDevicePrimaryCtxRetain(cuda::CudaContext* context, cuda::Device device) {
  if (!is_device(device)) return cuda::kInvalidDevice;
  const std::lock_guard lock(state().mutex);
  ++g_contexts[device].retained;
  *context = &g_contexts[device];
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDevicePrimaryCtxRelease_v2(cuda::Device device) {
  if (!is_device(device)) return cuda::kInvalidDevice;
  const std::lock_guard lock(state().mutex);
  if (g_contexts[device].retained == 0) return cuda::kInvalidContext;
  --g_contexts[device].retained;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuDevicePrimaryCtxGetState(cuda::Device device, unsigned* flags, int* active) {
  if (!is_device(device)) return cuda::kInvalidDevice;
  const std::lock_guard lock(state().mutex);
  *flags = 0;
  *active = g_contexts[device].retained > 0 ? 1 : 0;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuCtxPushCurrent_v2(cuda::CudaContext context) {
  if (context == nullptr) return cuda::kInvalidContext;
  t_stack.push_back(context);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuCtxPopCurrent_v2(cuda::CudaContext* context) {
  if (t_stack.empty()) return cuda::kInvalidContext;
  if (context != nullptr) *context = t_stack.back();
  t_stack.pop_back();
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuCtxGetCurrent(cuda::CudaContext* context) {
  if (!state().started) return cuda::kNotInitialized;
  *context = t_stack.empty() ? nullptr : t_stack.back();
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuCtxSetCurrent(cuda::CudaContext context) {
  if (!t_stack.empty()) t_stack.pop_back();
  if (context != nullptr) t_stack.push_back(context);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (current_device() < 0) return cuda::kInvalidContext;
  *least = 0;
  *greatest = -5;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, t_capture_mode);
  return cuda::kSuccess;
}

}  // namespace cuda_double
