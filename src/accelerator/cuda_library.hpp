/// The calls of the CUDA driver that are used here, found when they are first needed: a machine without it needs
/// nothing installed. The declarations are our own, with the binary interface of libcuda.so.1 (11.4 and later).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "railyard/result.hpp"

namespace railyard::accelerator::cuda {

using Code = int;  ///< of a call: 0 or what went wrong
using Device = int;
using Address = unsigned long long;  ///< of device memory
using MemoryHandle = unsigned long long;
struct ContextObject;
struct StreamObject;
struct EventObject;
using CudaContext = ContextObject*;
using Stream = StreamObject*;
using Event = EventObject*;

struct Uuid {
  std::array<std::byte, 16> bytes;
};
struct IpcHandle {
  std::array<std::byte, 64> bytes;
};
struct Location {
  int type;
  int id;
};
struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* windows_only;
  unsigned char compression;
  unsigned char rdma_capable;
  unsigned short usage;
  std::array<unsigned char, 4> reserved;
};
struct Access {
  Location location;
  int flags;
};
static_assert(sizeof(Uuid) == 16 && sizeof(IpcHandle) == 64);
static_assert(sizeof(AllocationProperties) == 32 && sizeof(Access) == 12);

constexpr Code kSuccess = 0;
constexpr Code kInvalidValue = 1;
constexpr Code kOutOfMemory = 2;
constexpr Code kNotInitialized = 3;
constexpr Code kNoDevice = 100;
constexpr Code kInvalidDevice = 101;
constexpr Code kInvalidContext = 201;
constexpr Code kMapFailed = 205;
constexpr Code kAlreadyMapped = 208;
constexpr Code kInvalidHandle = 400;
constexpr Code kNotReady = 600;
constexpr Code kIllegalAddress = 700;
constexpr Code kNotPermitted = 800;
constexpr Code kNotSupported = 801;

constexpr int kAttributeRdmaMapped = 110;
constexpr int kAttributeRdmaFlushOptions = 117;
constexpr int kAttributeRdmaWritesOrdering = 118;
constexpr int kAttributeStreamWrites64 = 122;
constexpr int kAttributeDmaBuf = 124;
constexpr int kP2pNativeAtomics = 3;

constexpr int kPointerMemoryType = 2;
constexpr int kPointerBufferId = 7;
constexpr int kPointerIsManaged = 8;
constexpr int kPointerDevice = 9;
constexpr int kPointerIsIpcCapable = 10;
constexpr int kPointerRangeStart = 11;
constexpr int kPointerRangeSize = 12;
constexpr int kPointerMemoryPool = 17;
constexpr int kPointerMappingSize = 18;
constexpr int kPointerMappingStart = 19;
constexpr int kPointerBlockId = 20;

constexpr unsigned kMemoryTypeHost = 1;
constexpr unsigned kMemoryTypeDevice = 2;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kIpcLazyPeerAccess = 1;
constexpr unsigned kHostPortable = 1;   ///< of cuMemHostAlloc and cuMemHostRegister alike
constexpr unsigned kHostDeviceMap = 2;  ///< likewise
constexpr int kHandlePosixDescriptor = 1;
constexpr int kRangeHandleDmaBuf = 1;
constexpr int kAllocationPinned = 1;
constexpr int kLocationDevice = 1;
constexpr int kAccessReadWrite = 3;
constexpr int kCaptureRelaxed = 2;
constexpr int kFlushOptionHost = 1;
constexpr int kOrderingOwner = 100;
constexpr int kFlushTargetCurrentContext = 0;
constexpr int kFlushToOwner = 100;

/// One of a batch of operations on memory; this one stores eight bytes.
struct StreamWrite {
  int operation = 5;
  Address address = 0;
  std::uint64_t value = 0;
  unsigned flags = 0;
  Address alias = 0;
  std::uint64_t unused = 0;
};
static_assert(sizeof(StreamWrite) == 48);

/// One pointer for each call. Those said to be missing in old drivers may be null.
struct Library {
  Code (*init)(unsigned flags) = nullptr;
  Code (*driver_version)(int* version) = nullptr;
  Code (*error_name)(Code code, const char** name) = nullptr;
  Code (*device_count)(int* count) = nullptr;
  Code (*device_get)(Device* device, int ordinal) = nullptr;
  Code (*device_uuid)(Uuid* uuid, Device device) = nullptr;
  Code (*device_bus_id)(char* text, int bytes, Device device) = nullptr;
  Code (*device_attribute)(int* value, int attribute, Device device) = nullptr;

  Code (*primary_retain)(CudaContext* context, Device device) = nullptr;
  Code (*primary_state)(Device device, unsigned* flags, int* active) = nullptr;
  Code (*context_push)(CudaContext context) = nullptr;
  Code (*context_pop)(CudaContext* context) = nullptr;
  Code (*context_current)(CudaContext* context) = nullptr;
  Code (*context_priorities)(int* least, int* greatest) = nullptr;
  Code (*exchange_capture_mode)(int* mode) = nullptr;

  Code (*pointer_attributes)(unsigned count, int* attributes, void** values, Address address) = nullptr;
  Code (*ipc_get)(IpcHandle* handle, Address address) = nullptr;
  Code (*ipc_open)(Address* address, IpcHandle handle, unsigned flags) = nullptr;
  Code (*ipc_close)(Address address) = nullptr;

  Code (*p2p_attribute)(int* value, int attribute, Device from, Device to) = nullptr;
  Code (*memory_granularity)(std::size_t* bytes, const AllocationProperties* properties, int option) = nullptr;
  Code (*memory_create)(MemoryHandle* handle, std::size_t bytes, const AllocationProperties* properties,
                        unsigned long long flags) = nullptr;
  Code (*memory_retain)(MemoryHandle* handle, void* address) = nullptr;
  Code (*memory_release)(MemoryHandle handle) = nullptr;
  Code (*memory_export)(void* shareable, MemoryHandle handle, int type, unsigned long long flags) = nullptr;
  Code (*memory_import)(MemoryHandle* handle, void* shareable, int type) = nullptr;
  Code (*memory_properties)(AllocationProperties* properties, MemoryHandle handle) = nullptr;
  Code (*address_reserve)(Address* address, std::size_t bytes, std::size_t alignment, Address wanted,
                          unsigned long long flags) = nullptr;
  Code (*address_free)(Address address, std::size_t bytes) = nullptr;
  Code (*memory_map)(Address address, std::size_t bytes, std::size_t offset, MemoryHandle handle,
                     unsigned long long flags) = nullptr;
  Code (*memory_unmap)(Address address, std::size_t bytes) = nullptr;
  Code (*memory_access)(Address address, std::size_t bytes, const Access* access, std::size_t count) = nullptr;
  /// Missing before 11.7: there are no dma-buf descriptors then.
  Code (*range_handle)(void* handle, Address address, std::size_t bytes, int type, unsigned long long flags) = nullptr;
  /// Missing before 11.3.
  Code (*flush_rdma_writes)(int target, int scope) = nullptr;

  Code (*device_allocate)(Address* address, std::size_t bytes) = nullptr;
  Code (*device_free)(Address address) = nullptr;
  Code (*host_allocate)(void** address, std::size_t bytes, unsigned flags) = nullptr;
  Code (*host_free)(void* address) = nullptr;
  Code (*host_register)(void* address, std::size_t bytes, unsigned flags) = nullptr;
  Code (*host_unregister)(void* address) = nullptr;
  Code (*host_device_address)(Address* device, void* host, unsigned flags) = nullptr;

  Code (*stream_create)(Stream* stream, unsigned flags, int priority) = nullptr;
  Code (*stream_destroy)(Stream stream) = nullptr;
  Code (*stream_query)(Stream stream) = nullptr;
  /// Missing before 11.7: events say then what is done.
  Code (*stream_writes)(Stream stream, unsigned count, StreamWrite* writes, unsigned flags) = nullptr;
  Code (*copy)(Address to, Address from, std::size_t bytes, Stream stream) = nullptr;
  Code (*event_create)(Event* event, unsigned flags) = nullptr;
  Code (*event_destroy)(Event event) = nullptr;
  Code (*event_record)(Event event, Stream stream) = nullptr;
  Code (*event_query)(Event event) = nullptr;
};

/// Whether the library is in the process, loaded by whomever.
bool is_loaded();
/// Where to look for the library, if it was not found yet.
enum class Look : std::uint8_t { no, in_the_process, on_the_machine };
/// Whether the program has started the driver (cuInit).
bool is_started(Look look);
/// Loads it and starts the driver; signal dispositions stay. An error says what is missing.
Result<Library> load();

}  // namespace railyard::accelerator::cuda
