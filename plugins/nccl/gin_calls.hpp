/// The calls of NCCL's GIN and RMA tables, in one form for all versions; `gin_tables.cc` makes the others of it.
///
/// Threads: operations, tests and progress of a group come from NCCL's progress thread, everything else from its
/// user's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi_gin.h"

namespace railyard::nccl::gin {

/// Fails without a warning where the user has not asked for it (RAILYARD_NCCL_GIN): NCCL goes on without then.
nccl_result init(const char* table, void** context, nccl_logger logger) noexcept;
/// NCCL calls it more often than init, and with what was never a context.
nccl_result finalize(void* context) noexcept;
nccl_result get_properties(int device, nccl_properties_v12* properties) noexcept;

nccl_result listen(int device, void* handle, void** listener) noexcept;
nccl_result connect(void** handles, int size, int rank, void* listener, void** group) noexcept;
nccl_result create_context(void* group, int contexts, void** context, nccl_device_handle** device) noexcept;
nccl_result destroy_context(void* context) noexcept;
nccl_result close_group(void* group) noexcept;
nccl_result close_listen(void* listener) noexcept;

/// `gin_memory` may be null: the versions of RMA have one handle for both.
nccl_result register_memory(void* group, void* data, std::size_t bytes, int type, void** memory,
                            void** gin_memory) noexcept;
nccl_result deregister_memory(void* group, void* memory) noexcept;

/// What an operation is asked of: a group, or one of the queues of a context.
struct Queue {
  void* group_or_context = nullptr;
  int number = 0;
};
/// An operation of NCCL's: `bytes` here and there. The target of a get is this process.
struct Transfer {
  std::uint64_t from_offset = 0;
  void* from = nullptr;
  std::size_t bytes = 0;
  std::uint64_t to_offset = 0;
  void* to = nullptr;
  std::uint32_t rank = 0;
};
struct Signal {
  std::uint64_t offset = 0;
  void* memory = nullptr;
  std::uint64_t value = 0;
  std::uint32_t op = 0;
};

nccl_result put(Queue queue, const Transfer& transfer, void** request) noexcept;
/// A strong signal, always: it covers all that was asked of that rank before.
nccl_result put_signal(Queue queue, const Transfer& transfer, const Signal& signal, void** request) noexcept;
nccl_result get(Queue queue, const Transfer& transfer, void** request) noexcept;
nccl_result flush(Queue queue, void* memory, std::uint32_t rank, void** request) noexcept;

nccl_result test(void* group, void* request, int* done) noexcept;
nccl_result progress(void* group_or_context) noexcept;
nccl_result last_error(void* context, bool* failed) noexcept;

}  // namespace railyard::nccl::gin
