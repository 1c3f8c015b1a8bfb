/// The exported GIN and RMA tables: one form of every call for each version, generated from the calls themselves.
#include "abi_gin.h"
#include "calls.hpp"
#include "gin_calls.hpp"
#include "tables.hpp"

namespace railyard::nccl::gin {

namespace {

template <typename Table>
inline constexpr const char* kTable = nullptr;
template <>
inline constexpr const char* kTable<nccl_gin_v11> = "GIN plugin v11";
template <>
inline constexpr const char* kTable<nccl_gin_v12> = "GIN plugin v12";
template <>
inline constexpr const char* kTable<nccl_gin_v13> = "GIN and RMA plugin v13";
template <>
inline constexpr const char* kTable<nccl_rma_v14> = "RMA plugin v14";
template <>
inline constexpr const char* kTable<nccl_rma_v15> = "RMA plugin v15";

// Each of these is called with the arguments of one version; the type of the table's member says which.

template <typename Table>
nccl_result init_in(void** context, std::uint64_t /*comm_id*/, nccl_logger logger) noexcept {
  return init(kTable<Table>, context, logger);
}

template <typename Properties>
nccl_result properties_in(int device, Properties* properties) noexcept {
  nccl_properties_v12 all;
  const nccl_result result = get_properties(device, properties == nullptr ? nullptr : &all);
  if (result == NCCL_OK) take_properties(*properties, all);
  return result;
}

nccl_result listen_in(void* /*context*/, int device, void* handle, void** listener) noexcept {
  return listen(device, handle, listener);
}

nccl_result connect_in(void* /*context*/, void** handles, int size, int rank, void* listener, void** group) noexcept {
  return connect(handles, size, rank, listener, group);
}
// Connections and the depth of queues are hints for networks whose queues are made in advance.
nccl_result connect_in(void* /*context*/, void** handles, int size, int rank, int /*connections*/, int /*queue_depth*/,
                       void* listener, void** group) noexcept {
  return connect(handles, size, rank, listener, group);
}

nccl_result create_in(void* group, int /*signals*/, int /*counters*/, void** context,
                      nccl_device_handle** device) noexcept {
  return create_context(group, 1, context, device);
}
nccl_result create_in(void* group, int /*signals*/, int /*counters*/, int contexts, void** context,
                      nccl_device_handle** device) noexcept {
  return create_context(group, contexts, context, device);
}
nccl_result create_in(void* group, nccl_gin_config_v13* config, void** context, nccl_device_handle** device) noexcept {
  return create_context(group, config == nullptr ? 1 : config->nContexts, context, device);
}
nccl_result create_in(void* group, nccl_rma_config_v14* config, void** context) noexcept {
  return create_context(group, config == nullptr ? 1 : config->nContexts, context, nullptr);
}

nccl_result register_in(void* group, void* data, std::size_t bytes, int type, std::uint64_t /*flags*/, void** memory,
                        void** gin_memory) noexcept {
  return register_memory(group, data, bytes, type, memory, gin_memory);
}
nccl_result register_in(void* group, void* data, std::size_t bytes, int type, std::uint64_t /*flags*/,
                        void** memory) noexcept {
  return register_memory(group, data, bytes, type, memory, nullptr);
}
// The memory's address says as much as its dma-buf: rails that need one ask the driver themselves.
nccl_result register_dmabuf_in(void* group, void* data, std::size_t bytes, int type, std::uint64_t /*offset*/,
                               int /*fd*/, std::uint64_t /*flags*/, void** memory, void** gin_memory) noexcept {
  return register_memory(group, data, bytes, type, memory, gin_memory);
}
nccl_result register_dmabuf_in(void* group, void* data, std::size_t bytes, int type, std::uint64_t /*offset*/,
                               int /*fd*/, std::uint64_t /*flags*/, void** memory) noexcept {
  return register_memory(group, data, bytes, type, memory, nullptr);
}

nccl_result put_in(void* group, std::uint64_t from_offset, void* from, std::size_t bytes, std::uint64_t to_offset,
                   void* to, std::uint32_t rank, void** request) noexcept {
  return put({group}, {from_offset, from, bytes, to_offset, to, rank}, request);
}
nccl_result put_in(void* group, std::uint64_t from_offset, void* from, std::size_t bytes, std::uint64_t to_offset,
                   void* to, std::uint32_t rank, int /*connection*/, void** request) noexcept {
  return put({group}, {from_offset, from, bytes, to_offset, to, rank}, request);
}
nccl_result put_in(void* context, int number, std::uint64_t from_offset, void* from, std::size_t bytes,
                   std::uint64_t to_offset, void* to, std::uint32_t rank, void** request) noexcept {
  return put({context, number}, {from_offset, from, bytes, to_offset, to, rank}, request);
}
// That more follows at once is a hint that the engine does not need: small operations of one pass share a frame anyway.
nccl_result put_in(void* context, int number, std::uint64_t from_offset, void* from, std::size_t bytes,
                   std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint32_t /*flags*/,
                   void** request) noexcept {
  return put({context, number}, {from_offset, from, bytes, to_offset, to, rank}, request);
}

nccl_result put_signal_in(void* group, std::uint64_t from_offset, void* from, std::size_t bytes,
                          std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint64_t signal_offset,
                          void* signal, std::uint64_t value, std::uint32_t op, void** request) noexcept {
  return put_signal({group}, {from_offset, from, bytes, to_offset, to, rank}, {signal_offset, signal, value, op},
                    request);
}
nccl_result put_signal_in(void* group, std::uint64_t from_offset, void* from, std::size_t bytes,
                          std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint64_t signal_offset,
                          void* signal, std::uint64_t value, std::uint32_t op, int /*connection*/,
                          void** request) noexcept {
  return put_signal({group}, {from_offset, from, bytes, to_offset, to, rank}, {signal_offset, signal, value, op},
                    request);
}
nccl_result put_signal_in(void* context, int number, std::uint64_t from_offset, void* from, std::size_t bytes,
                          std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint64_t signal_offset,
                          void* signal, std::uint64_t value, std::uint32_t op, void** request) noexcept {
  return put_signal({context, number}, {from_offset, from, bytes, to_offset, to, rank},
                    {signal_offset, signal, value, op}, request);
}
// A weak signal may be strong.
nccl_result put_signal_in(void* context, int number, std::uint64_t from_offset, void* from, std::size_t bytes,
                          std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint64_t signal_offset,
                          void* signal, std::uint64_t value, std::uint32_t op, bool /*strong*/,
                          void** request) noexcept {
  return put_signal({context, number}, {from_offset, from, bytes, to_offset, to, rank},
                    {signal_offset, signal, value, op}, request);
}
nccl_result put_signal_in(void* context, int number, std::uint64_t from_offset, void* from, std::size_t bytes,
                          std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint64_t signal_offset,
                          void* signal, std::uint64_t value, std::uint32_t op, bool /*strong*/, std::uint32_t /*flags*/,
                          void** request) noexcept {
  return put_signal({context, number}, {from_offset, from, bytes, to_offset, to, rank},
                    {signal_offset, signal, value, op}, request);
}

nccl_result get_in(void* context, int number, std::uint64_t from_offset, void* from, std::size_t bytes,
                   std::uint64_t to_offset, void* to, std::uint32_t rank, void** request) noexcept {
  return get({context, number}, {from_offset, from, bytes, to_offset, to, rank}, request);
}
nccl_result get_in(void* context, int number, std::uint64_t from_offset, void* from, std::size_t bytes,
                   std::uint64_t to_offset, void* to, std::uint32_t rank, std::uint32_t /*flags*/,
                   void** request) noexcept {
  return get({context, number}, {from_offset, from, bytes, to_offset, to, rank}, request);
}

nccl_result flush_in(void* context, int number, void* memory, std::uint32_t rank, void** request) noexcept {
  return flush({context, number}, memory, rank, request);
}

template <typename Table>
constexpr Table make_table() {
  Table table{};
  table.name = kName;
  table.init = init_in<Table>;
  table.devices = devices;
  table.getProperties = properties_in;
  table.listen = listen_in;
  table.connect = connect_in;
  table.createContext = create_in;
  table.regMrSym = register_in;
  table.regMrSymDmaBuf = register_dmabuf_in;
  table.deregMrSym = deregister_memory;
  table.destroyContext = destroy_context;
  table.closeColl = close_group;
  table.closeListen = close_listen;
  table.iput = put_in;
  table.iputSignal = put_signal_in;
  if constexpr (requires { table.iget; }) table.iget = get_in;
  if constexpr (requires { table.iflush; }) table.iflush = flush_in;
  table.test = test;
  if constexpr (requires { table.ginProgress; })
    table.ginProgress = progress;
  else
    table.rmaProgress = progress;
  table.queryLastError = last_error;
  table.finalize = finalize;
  return table;
}

}  // namespace

}  // namespace railyard::nccl::gin

extern "C" {
RAILYARD_EXPORT nccl_gin_v11 ncclGinPlugin_v11 = railyard::nccl::gin::make_table<nccl_gin_v11>();
RAILYARD_EXPORT nccl_gin_v12 ncclGinPlugin_v12 = railyard::nccl::gin::make_table<nccl_gin_v12>();
RAILYARD_EXPORT nccl_gin_v13 ncclGinPlugin_v13 = railyard::nccl::gin::make_table<nccl_gin_v13>();
RAILYARD_EXPORT nccl_gin_v13 ncclRmaPlugin_v13 = railyard::nccl::gin::make_table<nccl_gin_v13>();
RAILYARD_EXPORT nccl_rma_v14 ncclRmaPlugin_v14 = railyard::nccl::gin::make_table<nccl_rma_v14>();
RAILYARD_EXPORT nccl_rma_v15 ncclRmaPlugin_v15 = railyard::nccl::gin::make_table<nccl_rma_v15>();
}
