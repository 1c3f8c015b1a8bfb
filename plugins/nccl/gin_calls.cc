/// One-sided calls that set up: devices, groups of ranks, memory.
#include "gin_calls.hpp"

#include <cstring>
#include <memory>
#include <utility>

#include "calls.hpp"
#include "gin.hpp"
#include "log.hpp"
#include "plugin.hpp"

namespace railyard::nccl::gin {

namespace {

/// Nothing belongs to a context: NCCL connects with that of another init than it listens with, or with none.
constexpr char kContext = 0;

template <typename Expected>
Expected* known_as(void* object, Comm::Kind kind) {
  auto* const known = static_cast<Comm*>(object);
  return known != nullptr && known->kind == kind ? static_cast<Expected*>(known) : nullptr;
}

template <typename Expected>
nccl_result end(const char* call, void* object, Comm::Kind kind) noexcept {
  return guarded(call, [&]() -> nccl_result {
    auto* const known = known_as<Expected>(object, kind);
    if (known == nullptr) return misuse(call, "this is nothing that it ends");
    delete known;
    return NCCL_OK;
  });
}

}  // namespace

nccl_result init(const char* table, void** context, nccl_logger logger) noexcept {
  return guarded("init", [&]() -> nccl_result {
    if (context == nullptr) return misuse("init", "no place for the context");
    *context = nullptr;
    auto offered = Plugin::instance().init_one_sided(table, logger);
    if (!offered) return fail("init", offered.error());
    if (!*offered) return NCCL_INVALID_USAGE;
    *context = const_cast<char*>(&kContext);
    return NCCL_OK;
  });
}

nccl_result finalize(void* /*context*/) noexcept { return NCCL_OK; }

nccl_result get_properties(int device, nccl_properties_v12* properties) noexcept {
  // Those of the network's table: NCCL uses the same numbers for both, and its topology has one node for the two.
  const nccl_result result = nccl::get_properties(device, properties);
  if (result == NCCL_OK) properties->netDeviceType = NCCL_DEVICE_GIN_PROXY;
  return result;
}

nccl_result listen(int device, void* handle, void** listener) noexcept {
  return guarded("listen", [&]() -> nccl_result {
    if (handle == nullptr || listener == nullptr) return misuse("listen", "no place for the handle or the comm");
    *listener = nullptr;
    if (Plugin::instance().device(device) == nullptr) return misuse("listen", "no such device");
    auto hold = Plugin::instance().hold(device);
    if (!hold) return fail("listen", hold.error());
    auto made = message::HandleListener::open(hold->context().settings());
    if (!made) return fail("listen", made.error());
    std::memcpy(handle, made->handle().bytes.data(), NCCL_HANDLE_BYTES);
    *listener = static_cast<Comm*>(new GroupListenComm(std::move(*hold), std::move(*made)));
    return NCCL_OK;
  });
}

nccl_result connect(void** handles, int size, int rank, void* listener, void** group) noexcept {
  return guarded("connect", [&]() -> nccl_result {
    if (group == nullptr) return misuse("connect", "no place for the comm");
    *group = nullptr;
    auto* const known = known_as<GroupListenComm>(listener, Comm::Kind::group_listener);
    if (known == nullptr) return misuse("connect", "this is no listening comm of these tables");
    if (!known->listener) return misuse("connect", "this listening comm was connected already");
    if (handles == nullptr || size < 1 || rank < 0 || rank >= size || handles[0] == nullptr)
      return misuse("connect", "no handles, or a rank that is none of them");
    Handle first;
    std::memcpy(first.bytes.data(), handles[0], first.bytes.size());
    message::HandleListener own = std::move(*known->listener);
    known->listener.reset();
    auto made = GroupComm::open(known->hold.another(), std::move(own), first, rank, size);
    if (!made) return fail("connect", made.error());
    *group = static_cast<Comm*>(made->release());
    return NCCL_OK;
  });
}

nccl_result create_context(void* group, int contexts, void** context, nccl_device_handle** device) noexcept {
  return guarded("createContext", [&]() -> nccl_result {
    if (context == nullptr) return misuse("createContext", "no place for the context");
    *context = nullptr;
    if (device != nullptr) *device = nullptr;  // what kernels need is NCCL's own
    auto* const known = known_as<GroupComm>(group, Comm::Kind::group);
    if (known == nullptr) return misuse("createContext", "this is no group of ranks");
    if (contexts < 1) return misuse("createContext", "fewer than one context");
    auto made = std::make_unique<GroupContext>(*known, contexts);
    known->add_contexts(static_cast<std::size_t>(contexts));
    *context = static_cast<Comm*>(made.release());
    return NCCL_OK;
  });
}

nccl_result destroy_context(void* context) noexcept {
  return end<GroupContext>("destroyContext", context, Comm::Kind::group_context);
}
nccl_result close_group(void* group) noexcept { return end<GroupComm>("closeColl", group, Comm::Kind::group); }
nccl_result close_listen(void* listener) noexcept {
  return end<GroupListenComm>("closeListen", listener, Comm::Kind::group_listener);
}

nccl_result register_memory(void* group, void* data, std::size_t bytes, int type, void** memory,
                            void** gin_memory) noexcept {
  return guarded("regMrSym", [&]() -> nccl_result {
    if (memory == nullptr) return misuse("regMrSym", "no place for the memory's handle");
    *memory = nullptr;
    if (gin_memory != nullptr) *gin_memory = nullptr;
    auto* const known = known_as<GroupComm>(group, Comm::Kind::group);
    if (known == nullptr) return misuse("regMrSym", "this is no group of ranks");
    // From here on all ranks take part, whatever this one brings.
    auto made = known->register_memory({static_cast<std::byte*>(data), bytes}, type != NCCL_POINTER_HOST);
    if (!made) return fail("regMrSym", made.error());
    *memory = static_cast<Comm*>(*made);
    if (gin_memory != nullptr) *gin_memory = *memory;
    return NCCL_OK;
  });
}

nccl_result deregister_memory(void* group, void* memory) noexcept {
  return guarded("deregMrSym", [&]() -> nccl_result {
    auto* const known = known_as<GroupComm>(group, Comm::Kind::group);
    auto* const ended = known_as<GroupMemory>(memory, Comm::Kind::group_memory);
    if (known == nullptr || ended == nullptr)
      return misuse("deregMrSym", "no group of ranks, or no memory that it has registered");
    auto done = known->deregister_memory(*ended);
    return done ? NCCL_OK : fail("deregMrSym", done.error());
  });
}

}  // namespace railyard::nccl::gin
