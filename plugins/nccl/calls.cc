/// Calls that set up: devices, connections, memory.
#include "calls.hpp"

#include <cstring>
#include <utility>

#include "comm.hpp"
#include "log.hpp"
#include "plugin.hpp"

namespace railyard::nccl {

namespace {

/// The comm that NCCL hands over, if it is of one of these kinds.
template <typename Expected, typename... Kinds>
Expected* comm_of(void* comm, Kinds... kinds) {
  auto* const known = static_cast<Comm*>(comm);
  return known != nullptr && ((known->kind == kinds) || ...) ? static_cast<Expected*>(known) : nullptr;
}

ChannelComm* channel_of(void* comm) { return comm_of<ChannelComm>(comm, Comm::Kind::sender, Comm::Kind::receiver); }

template <typename Expected>
nccl_result close(const char* call, void* comm, Comm::Kind kind) noexcept {
  return guarded(call, [&]() -> nccl_result {
    auto* const known = comm_of<Expected>(comm, kind);
    if (known == nullptr) return misuse(call, "this is no comm that it closes");
    delete known;
    return NCCL_OK;
  });
}

Handle read_handle(const void* handle) {
  static_assert(Handle::kBytes == NCCL_HANDLE_BYTES);
  Handle copy;
  std::memcpy(copy.bytes.data(), handle, copy.bytes.size());
  return copy;
}

void write_handle(void* to, const Handle& handle) { std::memcpy(to, handle.bytes.data(), handle.bytes.size()); }

}  // namespace

nccl_result init(int abi_version, nccl_logger logger, nccl_profiler profiler, const nccl_comm_config* config,
                 void** context) noexcept {
  return guarded("init", [&]() -> nccl_result {
    auto ready = Plugin::instance().init(abi_version, logger, profiler, config, context);
    return ready ? NCCL_OK : fail("init", ready.error());
  });
}

nccl_result finalize(void* context) noexcept {
  return guarded("finalize", [&]() -> nccl_result {
    Plugin::instance().finalize(context);
    return NCCL_OK;
  });
}

nccl_result devices(int* count) noexcept {
  return guarded("devices", [&]() -> nccl_result {
    if (count == nullptr) return misuse("devices", "no place for the number");
    *count = Plugin::instance().device_count();
    return NCCL_OK;
  });
}

nccl_result get_properties(int device, nccl_properties_v12* properties) noexcept {
  return guarded("getProperties", [&]() -> nccl_result {
    const Device* const known = Plugin::instance().device(device);
    if (known == nullptr || properties == nullptr) return misuse("getProperties", "no such device");
    *properties = known->properties();
    return NCCL_OK;
  });
}

nccl_result listen(int device, void* handle, void** listener) noexcept {
  return guarded("listen", [&]() -> nccl_result {
    if (handle == nullptr || listener == nullptr) return misuse("listen", "no place for the handle or the comm");
    *listener = nullptr;
    auto hold = Plugin::instance().hold(device);
    if (!hold) return fail("listen", hold.error());
    auto made = hold->context().listen();
    if (!made) return fail("listen", made.error());
    write_handle(handle, (*made)->handle());
    *listener = static_cast<Comm*>(new ListenComm(std::move(*hold), std::move(*made)));
    return NCCL_OK;
  });
}

nccl_result connect(int device, std::uint32_t service_class, void* handle, void** sender) noexcept {
  return guarded("connect", [&]() -> nccl_result {
    if (handle == nullptr || sender == nullptr) return misuse("connect", "no handle, or no place for the comm");
    *sender = nullptr;
    Plugin& plugin = Plugin::instance();
    auto hold = plugin.hold(device);
    if (!hold) return fail("connect", hold.error());
    // A copy: NCCL promises no alignment. What has been achieved so far is kept in the handle itself.
    Handle copy = read_handle(handle);
    auto channel = hold->context().connect(copy, {.service_class = service_class});
    write_handle(handle, copy);
    plugin.set_connecting(hold->device(), handle, channel && *channel == nullptr);
    if (!channel) return fail("connect", channel.error());
    if (*channel == nullptr) return NCCL_OK;
    *sender = static_cast<Comm*>(
        new ChannelComm(Comm::Kind::sender, std::move(*hold), std::move(*channel), plugin.profiler()));
    return NCCL_OK;
  });
}

nccl_result accept(void* listener, void** receiver, nccl_device_handle** /*offload*/) noexcept {
  return guarded("accept", [&]() -> nccl_result {
    if (receiver == nullptr) return misuse("accept", "no place for the comm");
    *receiver = nullptr;
    auto* const comm = comm_of<ListenComm>(listener, Comm::Kind::listener);
    if (comm == nullptr) return misuse("accept", "this is no listening comm");
    auto channel = comm->listener->accept();
    if (!channel) return fail("accept", channel.error());
    if (*channel == nullptr) return NCCL_OK;
    Plugin& plugin = Plugin::instance();
    *receiver = static_cast<Comm*>(
        new ChannelComm(Comm::Kind::receiver, comm->hold.another(), std::move(*channel), plugin.profiler()));
    return NCCL_OK;
  });
}

nccl_result close_send(void* comm) noexcept { return close<ChannelComm>("closeSend", comm, Comm::Kind::sender); }
nccl_result close_receive(void* comm) noexcept { return close<ChannelComm>("closeRecv", comm, Comm::Kind::receiver); }
nccl_result close_listen(void* comm) noexcept { return close<ListenComm>("closeListen", comm, Comm::Kind::listener); }

namespace {

nccl_result register_any(const char* call, void* comm, void* data, std::size_t bytes, int type, DmaBufRange dma_buf,
                         void** memory) {
  if (memory == nullptr) return misuse(call, "no place for the memory's handle");
  *memory = nullptr;
  ChannelComm* const known = channel_of(comm);
  if (known == nullptr) return misuse(call, "this is no sending or receiving comm");
  if (data == nullptr && bytes != 0) return misuse(call, "memory at no address");
  if (type != NCCL_POINTER_HOST && (type != NCCL_POINTER_CUDA || !known->takes_gpu_memory()))
    return fail(call, Error(Status::unsupported,
                            "memory of this kind cannot be registered: rails take host memory only, as the properties "
                            "of the device say (RAILYARD_NCCL_GPU_MEMORY=on changes that for tcp rails, and for NICs "
                            "that register dma-bufs)"));
  auto name = known->register_memory({static_cast<std::byte*>(data), bytes}, dma_buf);
  if (!name) return fail(call, name.error());
  *memory = *name;
  return NCCL_OK;
}

}  // namespace

nccl_result register_memory(void* comm, void* data, std::size_t bytes, int type, void** memory) noexcept {
  return guarded("regMr", [&] { return register_any("regMr", comm, data, bytes, type, {}, memory); });
}

/// NCCL closes the descriptor after the call: a registration keeps what it needs.
nccl_result register_dmabuf(void* comm, void* data, std::size_t bytes, int type, std::uint64_t offset, int fd,
                            void** memory) noexcept {
  return guarded("regMrDmaBuf", [&] {
    return register_any("regMrDmaBuf", comm, data, bytes, type, {fd, offset}, memory);
  });
}

nccl_result deregister_memory(void* comm, void* memory) noexcept {
  return guarded("deregMr", [&]() -> nccl_result {
    ChannelComm* const known = channel_of(comm);
    if (known == nullptr) return misuse("deregMr", "this is no sending or receiving comm");
    auto ended = known->deregister_memory(memory);
    return ended ? NCCL_OK : fail("deregMr", ended.error());
  });
}

std::uint32_t service_class_of(int traffic_class) noexcept {
  return traffic_class == NCCL_UNDEFINED ? 0 : static_cast<std::uint32_t>(traffic_class);
}

std::uint32_t service_class_of(const void* context) noexcept {
  return Plugin::instance().init_context(context).service_class;
}

}  // namespace railyard::nccl
