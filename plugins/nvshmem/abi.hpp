/// What NVSHMEM asks of a remote transport: the layout of its structures and tables, and nothing else. Declared here
/// from what is known of the layout; no header of NVSHMEM or CUDA is needed.
///
///   major 3   NVSHMEM 3.0 to 3.4; `get_mem_handle` has one argument more before 3.3 (see GetMemHandle3)
///   major 4   NVSHMEM 3.5: put_signal, queue-pair numbers, the table of calls at the end
///
/// The host dlopens nvshmem_transport_NAME.so.MAJOR and calls `nvshmemt_init`, which makes the structure; the host
/// fills in what it shares and calls through the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace railyard::nvshmem::abi {

inline constexpr int version_major(int api_version) { return api_version / 10000; }
inline constexpr int version_of(int major) { return major * 10000; }

/// What calls answer; anything but success ends the process, by the host's own hand.
enum Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotSupported = 3,
  kInternal = 7,
};

/// How a peer can be reached, bit by bit.
enum Access : int { kCpuWrite = 1 << 4, kCpuRead = 1 << 5, kCpuAtomics = 1 << 6 };
/// Transport::attr: endpoints are connected before use.
inline constexpr int kConnected = 1 << 1;

/// Whose operation it is: the last argument of most calls. Major 3 says 0 or 1, which means the same.
inline constexpr int kHostQueue = 0;
inline constexpr int kDefaultQueue = 1;

enum class RmaOp : int { put = 1, p, put_signal, get, g };
enum class AmoOp : int {
  increment = 2,
  set = 3,
  add = 4,
  bit_and = 5,
  bit_or = 6,
  bit_xor = 7,
  signal = 8,
  signal_set = 9,
  signal_add = 10,
  fetch = 12,  ///< this and all that follow bring a value back
  fetch_increment = 13,
  fetch_add = 14,
  fetch_and = 15,
  fetch_or = 16,
  fetch_xor = 17,
  swap = 18,
  compare_swap = 19,
};

/// Travels from its owner to all others byte by byte. All zero: none.
struct MemHandle {
  std::byte bytes[512];
};

struct PcieId {
  int device;
  int bus;
  int domain;
};
struct PeInfo {
  PcieId gpu;
  int pe;
  std::uint64_t host_hash;
  std::byte gpu_uuid[16];
};

struct RmaVerb {
  RmaOp op;
  int is_nbi;
  int is_stream;
  void* stream;
};
struct MemDesc {
  void* address;         ///< remote: as its owner calls it
  std::uint64_t offset;  ///< remote: from where the host sees the handle's memory begin
  MemHandle* handle;     ///< of a scalar here: null
};
struct BytesDesc {
  std::size_t elements;
  int element_bytes;
  std::ptrdiff_t source_stride;
  std::ptrdiff_t destination_stride;
};
/// From the host's proxy only `op` is set.
struct AmoVerb {
  AmoOp op;
  int is_fetch;
  int is_value;
  int is_compare;
};
struct AmoMemDesc {
  MemDesc remote;
  std::uint64_t result_flag;
  void* result;  ///< a Result here, in memory of the GPU
  void* value_pointer;
  void* compare_pointer;
  std::uint64_t value;
  std::uint64_t compare;
  MemHandle* result_handle;
};
struct AmoBytesDesc {
  int name_type;
  int element_bytes;
};
/// Where a fetched value goes: the value first; the flag tells a waiting kernel that it is there.
struct FetchResult {
  std::uint64_t value;
  std::uint64_t flag;
};

/// How the host's ranks meet. Collective, at set-up.
struct Bootstrap {
  int version;
  int rank;
  int size;
  int rank_on_node;
  int size_of_node;
  int (*allgather)(const void* mine, void* all, int bytes, Bootstrap* self);
  int (*alltoall)(const void* mine, void* all, int bytes, Bootstrap* self);
  int (*barrier)(Bootstrap* self);
  void (*global_exit)(int status);
  int (*finalize)(Bootstrap* self);
  int (*show_info)(Bootstrap* self, int style);
  void* pre_init_ops;
  void* comm_state;
};

struct Transport3;
struct Transport4;

/// Before 3.3 a second handle came first: (handle, input handle, memory, bytes, transport, local_only). The version
/// number does not tell; where the transport stands among the arguments does. All six fit into registers, so reading
/// one that was not passed is harmless.
using GetMemHandle3 = int (*)(MemHandle* handle, void* second, std::uintptr_t third, std::uintptr_t fourth,
                              std::uintptr_t fifth, std::uintptr_t sixth);

struct HostOps3 {
  int (*can_reach_peer)(int* access, PeInfo* peer, Transport3* self);
  int (*connect_endpoints)(Transport3* self, int* devices, int count);
  GetMemHandle3 get_mem_handle;
  int (*release_mem_handle)(MemHandle* handle, Transport3* self);
  int (*finalize)(Transport3* self);
  int (*show_info)(Transport3* self, int style);
  int (*progress)(Transport3* self);
  int (*rma)(Transport3* self, int pe, RmaVerb verb, MemDesc* remote, MemDesc* local, BytesDesc bytes, int queue);
  int (*amo)(Transport3* self, int pe, void* unused, AmoVerb verb, AmoMemDesc* target, AmoBytesDesc bytes, int queue);
  int (*fence)(Transport3* self, int pe, int queue);
  int (*quiet)(Transport3* self, int pe, int queue);
  int (*enforce_cst)(Transport3* self);
  int (*enforce_cst_at_target)(Transport3* self);
  int (*add_device_remote_mem_handles)(Transport3* self, int stride, MemHandle* handles, std::uint64_t offset,
                                       std::size_t bytes);
};

struct HostOps4 {
  int (*can_reach_peer)(int* access, PeInfo* peer, Transport4* self);
  int (*connect_endpoints)(Transport4* self, int* devices, int count, int* queues, int queue_count);
  int (*get_mem_handle)(MemHandle* handle, void* memory, std::size_t bytes, Transport4* self, bool local_only);
  int (*release_mem_handle)(MemHandle* handle, Transport4* self);
  int (*finalize)(Transport4* self);
  int (*show_info)(Transport4* self, int style);
  int (*progress)(Transport4* self);
  int (*rma)(Transport4* self, int pe, RmaVerb verb, MemDesc* remote, MemDesc* local, BytesDesc bytes, int queue);
  int (*amo)(Transport4* self, int pe, void* unused, AmoVerb verb, AmoMemDesc* target, AmoBytesDesc bytes, int queue);
  int (*fence)(Transport4* self, int pe, int queue, int is_multi);
  int (*quiet)(Transport4* self, int pe, int queue);
  int (*put_signal)(Transport4* self, int pe, RmaVerb verb, std::vector<MemDesc>& remote, std::vector<MemDesc>& local,
                    std::vector<BytesDesc>& bytes, AmoVerb signal_verb, AmoMemDesc* signal, AmoBytesDesc signal_bytes,
                    int queue);
  int (*enforce_cst)(Transport4* self);
  int (*enforce_cst_at_target)(Transport4* self);
  int (*add_device_remote_mem_handles)(Transport4* self, int stride, MemHandle* handles, std::uint64_t offset,
                                       std::size_t bytes);
};

struct Transport3 {
  int api_version;
  int type;
  int* access;
  HostOps3 host_ops;
  Bootstrap* bootstrap;  ///< this and what the host shares below: set after init, before any other call
  void* state;           ///< ours
  void* type_specific_shared_state;
  void* cache_handle;
  char** device_pci_paths;
  int attr;
  int devices;  ///< 0: the transport chooses its devices itself
  bool atomics_complete_on_quiet;
  bool is_successfully_initialized;
  bool no_proxy;
  void* heap_base;
  std::size_t log2_granularity;
  std::uint64_t max_op_bytes;  ///< 0: any
  std::uint32_t atomic_host_endian_min_size;
  int index;
  int pe;
  int pes;
  void* alias_map;  ///< this and the next: since 3.3
  void* egm_map;
};

struct Transport4 {
  int api_version;
  int type;
  int* access;
  Bootstrap* bootstrap;
  void* state;
  void* type_specific_shared_state;
  void* cache_handle;
  char** device_pci_paths;
  int attr;
  int devices;
  bool atomics_complete_on_quiet;
  bool is_successfully_initialized;
  bool no_proxy;
  void* heap_base;
  std::size_t log2_granularity;
  std::uint64_t max_op_bytes;
  std::uint32_t atomic_host_endian_min_size;
  int index;
  int pe;
  int pes;
  void* alias_map;
  void* egm_map;
  HostOps4 host_ops;
};

/// Hosts may read members behind the last that is known: what is not there must be zero.
inline constexpr std::size_t kTransportBytes = 4096;

// The layout on 64-bit machines. A wrong offset here is a wild jump there.
static_assert(sizeof(void*) == 8);
static_assert(sizeof(MemHandle) == 512);
static_assert(sizeof(PcieId) == 12);
static_assert(sizeof(PeInfo) == 40 && offsetof(PeInfo, pe) == 12 && offsetof(PeInfo, host_hash) == 16 &&
              offsetof(PeInfo, gpu_uuid) == 24);
static_assert(sizeof(RmaVerb) == 24 && offsetof(RmaVerb, is_nbi) == 4 && offsetof(RmaVerb, is_stream) == 8 &&
              offsetof(RmaVerb, stream) == 16);
static_assert(sizeof(MemDesc) == 24 && offsetof(MemDesc, offset) == 8 && offsetof(MemDesc, handle) == 16);
static_assert(sizeof(BytesDesc) == 32 && offsetof(BytesDesc, element_bytes) == 8 &&
              offsetof(BytesDesc, source_stride) == 16 && offsetof(BytesDesc, destination_stride) == 24);
static_assert(sizeof(AmoVerb) == 16 && offsetof(AmoVerb, is_fetch) == 4 && offsetof(AmoVerb, is_value) == 8 &&
              offsetof(AmoVerb, is_compare) == 12);
static_assert(sizeof(AmoMemDesc) == 80 && offsetof(AmoMemDesc, result_flag) == 24 &&
              offsetof(AmoMemDesc, result) == 32 && offsetof(AmoMemDesc, value_pointer) == 40 &&
              offsetof(AmoMemDesc, compare_pointer) == 48 && offsetof(AmoMemDesc, value) == 56 &&
              offsetof(AmoMemDesc, compare) == 64 && offsetof(AmoMemDesc, result_handle) == 72);
static_assert(sizeof(AmoBytesDesc) == 8 && offsetof(AmoBytesDesc, element_bytes) == 4);
static_assert(sizeof(FetchResult) == 16 && offsetof(FetchResult, flag) == 8);
static_assert(sizeof(Bootstrap) == 88 && offsetof(Bootstrap, rank) == 4 && offsetof(Bootstrap, size) == 8 &&
              offsetof(Bootstrap, rank_on_node) == 12 && offsetof(Bootstrap, size_of_node) == 16 &&
              offsetof(Bootstrap, allgather) == 24 && offsetof(Bootstrap, alltoall) == 32 &&
              offsetof(Bootstrap, barrier) == 40 && offsetof(Bootstrap, global_exit) == 48 &&
              offsetof(Bootstrap, finalize) == 56 && offsetof(Bootstrap, show_info) == 64 &&
              offsetof(Bootstrap, pre_init_ops) == 72 && offsetof(Bootstrap, comm_state) == 80);

static_assert(sizeof(HostOps3) == 112 && offsetof(HostOps3, connect_endpoints) == 8 &&
              offsetof(HostOps3, get_mem_handle) == 16 && offsetof(HostOps3, release_mem_handle) == 24 &&
              offsetof(HostOps3, finalize) == 32 && offsetof(HostOps3, show_info) == 40 &&
              offsetof(HostOps3, progress) == 48 && offsetof(HostOps3, rma) == 56 && offsetof(HostOps3, amo) == 64 &&
              offsetof(HostOps3, fence) == 72 && offsetof(HostOps3, quiet) == 80 &&
              offsetof(HostOps3, enforce_cst) == 88 && offsetof(HostOps3, enforce_cst_at_target) == 96 &&
              offsetof(HostOps3, add_device_remote_mem_handles) == 104);
static_assert(sizeof(HostOps4) == 120 && offsetof(HostOps4, connect_endpoints) == 8 &&
              offsetof(HostOps4, get_mem_handle) == 16 && offsetof(HostOps4, release_mem_handle) == 24 &&
              offsetof(HostOps4, finalize) == 32 && offsetof(HostOps4, show_info) == 40 &&
              offsetof(HostOps4, progress) == 48 && offsetof(HostOps4, rma) == 56 && offsetof(HostOps4, amo) == 64 &&
              offsetof(HostOps4, fence) == 72 && offsetof(HostOps4, quiet) == 80 &&
              offsetof(HostOps4, put_signal) == 88 && offsetof(HostOps4, enforce_cst) == 96 &&
              offsetof(HostOps4, enforce_cst_at_target) == 104 &&
              offsetof(HostOps4, add_device_remote_mem_handles) == 112);

static_assert(sizeof(Transport3) == 240 && offsetof(Transport3, type) == 4 && offsetof(Transport3, access) == 8 &&
              offsetof(Transport3, host_ops) == 16 && offsetof(Transport3, bootstrap) == 128 &&
              offsetof(Transport3, state) == 136 && offsetof(Transport3, type_specific_shared_state) == 144 &&
              offsetof(Transport3, cache_handle) == 152 && offsetof(Transport3, device_pci_paths) == 160 &&
              offsetof(Transport3, attr) == 168 && offsetof(Transport3, devices) == 172 &&
              offsetof(Transport3, atomics_complete_on_quiet) == 176 &&
              offsetof(Transport3, is_successfully_initialized) == 177 && offsetof(Transport3, no_proxy) == 178 &&
              offsetof(Transport3, heap_base) == 184 && offsetof(Transport3, log2_granularity) == 192 &&
              offsetof(Transport3, max_op_bytes) == 200 && offsetof(Transport3, atomic_host_endian_min_size) == 208 &&
              offsetof(Transport3, index) == 212 && offsetof(Transport3, pe) == 216 &&
              offsetof(Transport3, pes) == 220 && offsetof(Transport3, alias_map) == 224 &&
              offsetof(Transport3, egm_map) == 232);
static_assert(sizeof(Transport4) == 248 && offsetof(Transport4, type) == 4 && offsetof(Transport4, access) == 8 &&
              offsetof(Transport4, bootstrap) == 16 && offsetof(Transport4, state) == 24 &&
              offsetof(Transport4, type_specific_shared_state) == 32 && offsetof(Transport4, cache_handle) == 40 &&
              offsetof(Transport4, device_pci_paths) == 48 && offsetof(Transport4, attr) == 56 &&
              offsetof(Transport4, devices) == 60 && offsetof(Transport4, atomics_complete_on_quiet) == 64 &&
              offsetof(Transport4, is_successfully_initialized) == 65 && offsetof(Transport4, no_proxy) == 66 &&
              offsetof(Transport4, heap_base) == 72 && offsetof(Transport4, log2_granularity) == 80 &&
              offsetof(Transport4, max_op_bytes) == 88 && offsetof(Transport4, atomic_host_endian_min_size) == 96 &&
              offsetof(Transport4, index) == 100 && offsetof(Transport4, pe) == 104 &&
              offsetof(Transport4, pes) == 108 && offsetof(Transport4, alias_map) == 112 &&
              offsetof(Transport4, egm_map) == 120 && offsetof(Transport4, host_ops) == 128);
static_assert(kTransportBytes >= 2 * sizeof(Transport4));

}  // namespace railyard::nvshmem::abi
