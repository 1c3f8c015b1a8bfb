/// The calls of the ABI, in the form of its newest version; `tables.cc` makes the older ones of them.
///
/// Threads: NCCL calls from two, and from two for each communicator. What sends, receives or tests touches its own comm
/// alone; the rest takes the plugin's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"

namespace railyard::nccl {

/// `context` null: a version without contexts.
nccl_result init(int abi_version, nccl_logger logger, nccl_profiler profiler, const nccl_comm_config* config,
                 void** context) noexcept;
nccl_result finalize(void* context) noexcept;
nccl_result devices(int* count) noexcept;
nccl_result get_properties(int device, nccl_properties_v12* properties) noexcept;

nccl_result listen(int device, void* handle, void** listener) noexcept;
nccl_result connect(int device, std::uint32_t service_class, void* handle, void** sender) noexcept;
nccl_result accept(void* listener, void** receiver, nccl_device_handle** offload) noexcept;
nccl_result close_send(void* comm) noexcept;
nccl_result close_receive(void* comm) noexcept;
nccl_result close_listen(void* comm) noexcept;

nccl_result register_memory(void* comm, void* data, std::size_t bytes, int type, void** memory) noexcept;
nccl_result register_dmabuf(void* comm, void* data, std::size_t bytes, int type, std::uint64_t offset, int fd,
                            void** memory) noexcept;
nccl_result deregister_memory(void* comm, void* memory) noexcept;

nccl_result send(void* comm, void* data, std::size_t bytes, int tag, void* memory, void* parent,
                 void** request) noexcept;
nccl_result receive(void* comm, int n, void** data, const std::size_t* sizes, const int* tags, void** memories,
                    void** parents, void** request) noexcept;
nccl_result flush(void* comm, int n, void** data, int* sizes, void** memories, void** request) noexcept;
nccl_result test(void* request, int* done, int* sizes) noexcept;

/// What a traffic class that NCCL gives means for the links: none given is the first class.
std::uint32_t service_class_of(int traffic_class) noexcept;
/// The one of a context.
std::uint32_t service_class_of(const void* context) noexcept;

}  // namespace railyard::nccl
