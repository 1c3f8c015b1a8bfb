/// The exported tables: one form of every call for each version of the ABI, generated from the calls themselves.
#include "tables.hpp"

#include <array>
#include <concepts>

#include "abi.h"
#include "calls.hpp"
#include "log.hpp"
#include "railyard/channel.hpp"

namespace railyard::nccl {

namespace {

template <typename Table>
inline constexpr int kVersion = 0;
template <>
inline constexpr int kVersion<nccl_net_v8> = 8;
template <>
inline constexpr int kVersion<nccl_net_v9> = 9;
template <>
inline constexpr int kVersion<nccl_net_v10> = 10;
template <>
inline constexpr int kVersion<nccl_net_v11> = 11;
template <>
inline constexpr int kVersion<nccl_net_v12> = 12;

// Each of these is called with the arguments of one version; the type of the table's member says which.

template <int version>
nccl_result init_in(nccl_logger logger) noexcept {
  return init(version, logger, nullptr, nullptr, nullptr);
}
template <int version>
nccl_result init_in(nccl_logger logger, nccl_profiler profiler) noexcept {
  return init(version, logger, profiler, nullptr, nullptr);
}
template <int version>
nccl_result init_in(void** context, std::uint64_t /*comm_id*/, nccl_comm_config* config, nccl_logger logger,
                    nccl_profiler profiler) noexcept {
  if (context == nullptr) return misuse("init", "no place for the context");
  *context = nullptr;
  return init(version, logger, profiler, config, context);
}

template <typename Properties>
nccl_result properties_in(int device, Properties* properties) noexcept {
  nccl_properties_v12 all;
  if (const nccl_result result = get_properties(device, properties == nullptr ? nullptr : &all); result != NCCL_OK)
    return result;
  take_properties(*properties, all);
  return NCCL_OK;
}

nccl_result listen_in(int device, void* handle, void** listener) noexcept { return listen(device, handle, listener); }
nccl_result listen_in(void* /*context*/, int device, void* handle, void** listener) noexcept {
  return listen(device, handle, listener);
}

nccl_result connect_in(int device, void* handle, void** sender, nccl_device_handle** /*offload*/) noexcept {
  return connect(device, service_class_of(NCCL_UNDEFINED), handle, sender);
}
nccl_result connect_in(int device, nccl_comm_config* config, void* handle, void** sender,
                       nccl_device_handle** /*offload*/) noexcept {
  const int traffic_class = config == nullptr ? NCCL_UNDEFINED : config->trafficClass;
  return connect(device, service_class_of(traffic_class), handle, sender);
}
nccl_result connect_in(void* context, int device, void* handle, void** sender,
                       nccl_device_handle** /*offload*/) noexcept {
  return connect(device, service_class_of(context), handle, sender);
}

nccl_result send_in(void* comm, void* data, int bytes, int tag, void* memory, void** request) noexcept {
  if (bytes < 0) {
    if (request != nullptr) *request = nullptr;
    return misuse("isend", "a size below zero");
  }
  return send(comm, data, static_cast<std::size_t>(bytes), tag, memory, nullptr, request);
}
nccl_result send_in(void* comm, void* data, std::size_t bytes, int tag, void* memory, void** request) noexcept {
  return send(comm, data, bytes, tag, memory, nullptr, request);
}
nccl_result send_in(void* comm, void* data, std::size_t bytes, int tag, void* memory, void* parent,
                    void** request) noexcept {
  return send(comm, data, bytes, tag, memory, parent, request);
}

nccl_result receive_in(void* comm, int n, void** data, int* sizes, int* tags, void** memories,
                       void** request) noexcept {
  std::array<std::size_t, Channel::kMostSlots> wide{};
  for (std::size_t i = 0; sizes != nullptr && n > 0 && i < static_cast<std::size_t>(n) && i < wide.size(); ++i) {
    if (sizes[i] < 0) {
      if (request != nullptr) *request = nullptr;
      return misuse("irecv", "a size below zero");
    }
    wide[i] = static_cast<std::size_t>(sizes[i]);
  }
  return receive(comm, n, data, sizes == nullptr ? nullptr : wide.data(), tags, memories, nullptr, request);
}
nccl_result receive_in(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** memories,
                       void** request) noexcept {
  return receive(comm, n, data, sizes, tags, memories, nullptr, request);
}
nccl_result receive_in(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** memories, void** parents,
                       void** request) noexcept {
  return receive(comm, n, data, sizes, tags, memories, parents, request);
}

/// makeVDevice, setNetAttr and what is for GPU-side networks stay null: not offered.
template <typename Table>
constexpr Table make_table() {
  Table table{};
  table.name = kName;
  table.init = init_in<kVersion<Table>>;
  table.devices = devices;
  table.getProperties = properties_in;
  table.listen = listen_in;
  table.connect = connect_in;
  table.accept = accept;
  table.regMr = register_memory;
  table.regMrDmaBuf = register_dmabuf;
  table.deregMr = deregister_memory;
  table.isend = send_in;
  table.irecv = receive_in;
  table.iflush = flush;
  table.test = test;
  table.closeSend = close_send;
  table.closeRecv = close_receive;
  table.closeListen = close_listen;
  if constexpr (requires { table.finalize; }) table.finalize = finalize;
  return table;
}

}  // namespace

}  // namespace railyard::nccl

extern "C" {
RAILYARD_EXPORT nccl_net_v8 ncclNetPlugin_v8 = railyard::nccl::make_table<nccl_net_v8>();
RAILYARD_EXPORT nccl_net_v9 ncclNetPlugin_v9 = railyard::nccl::make_table<nccl_net_v9>();
RAILYARD_EXPORT nccl_net_v10 ncclNetPlugin_v10 = railyard::nccl::make_table<nccl_net_v10>();
RAILYARD_EXPORT nccl_net_v11 ncclNetPlugin_v11 = railyard::nccl::make_table<nccl_net_v11>();
RAILYARD_EXPORT nccl_net_v12 ncclNetPlugin_v12 = railyard::nccl::make_table<nccl_net_v12>();
}
