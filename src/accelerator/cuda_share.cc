/// Allocations of other processes: cudaMalloc's by the driver's own handle, memory mapped by its owner (cuMemMap) by a
/// file descriptor that peers take with pidfd_getfd, which needs what process_vm_readv needs. And memory of our own
/// that can be shared so.
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "accelerator/cuda.hpp"
#include "base/fd.hpp"

namespace railyard::accelerator::cuda {

namespace {

/// The driver's handle is good for as long as the allocation is: nothing to keep but the descriptor, where there is
/// one.
class SharedMemory final : public Shared {
 public:
  SharedMemory(ShareHandle handle, Fd descriptor) : handle_(handle), descriptor_(std::move(descriptor)) {}
  const ShareHandle& handle() const override { return handle_; }

 private:
  ShareHandle handle_;
  Fd descriptor_;
};

class IpcMapping final : public Mapping {
 public:
  IpcMapping(CudaDriver& driver, CudaContext context, Address address, std::size_t bytes, int device)
      : driver_(driver), context_(context), address_(address), bytes_(bytes), device_(device) {}
  ~IpcMapping() override { driver_.close_ipc(address_, context_); }
  std::span<std::byte> memory() const override { return {as_pointer(address_), bytes_}; }
  int device() const override { return device_; }

 private:
  CudaDriver& driver_;
  CudaContext context_;
  Address address_;
  std::size_t bytes_;
  int device_;
};

/// What is reserved, mapped and imported or made, undone in turn.
class DescriptorMapping final : public Mapping {
 public:
  DescriptorMapping(CudaDriver& driver, CudaContext context, int device)
      : driver_(driver), context_(context), device_(device) {}
  ~DescriptorMapping() override {
    const Library& calls = driver_.calls();
    const Current current(calls, context_);
    if (mapped_) calls.memory_unmap(address_, bytes_);
    if (address_ != 0) calls.address_free(address_, bytes_);
    if (held_) calls.memory_release(handle_);
  }
  std::span<std::byte> memory() const override { return {as_pointer(address_), bytes_}; }
  int device() const override { return device_; }

  Result<void> import(int descriptor) {
    const Library& calls = driver_.calls();
    // The driver takes the number itself for a pointer.
    void* const shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
    if (const Code code = calls.memory_import(&handle_, shareable, kHandlePosixDescriptor); code != kSuccess) {
      return driver_.error(code, "cuMemImportFromShareableHandle", device_, "the peer's memory is gone");
    }
    held_ = true;
    AllocationProperties properties{};
    if (const Code code = calls.memory_properties(&properties, handle_); code != kSuccess) {
      return driver_.error(code, "cuMemGetAllocationPropertiesFromHandle", device_, "the peer's memory is not mapped");
    }
    if (properties.location.type != kLocationDevice || properties.location.id != device_) {
      return Error(Status::refused, "a peer's handle names memory of another device than it says");
    }
    return {};
  }

  /// Returns how many bytes it has.
  Result<std::size_t> create(std::size_t bytes) {
    const Library& calls = driver_.calls();
    AllocationProperties properties{};
    properties.type = kAllocationPinned;
    properties.handle_types = kHandlePosixDescriptor;
    properties.location = {kLocationDevice, device_};
    properties.rdma_capable = driver_.attribute(device_, kAttributeRdmaMapped) != 0 ? 1 : 0;  // or no NIC registers it
    std::size_t unit = 0;
    if (const Code code = calls.memory_granularity(&unit, &properties, 0); code != kSuccess || unit == 0) {
      return driver_.error(code, "cuMemGetAllocationGranularity", device_, "it has no memory that peers can map");
    }
    if (bytes > SIZE_MAX - unit) return Error(Status::no_memory, "longer than the address space");
    const std::size_t whole = std::max<std::size_t>((bytes + unit - 1) / unit, 1) * unit;
    if (const Code code = calls.memory_create(&handle_, whole, &properties, 0); code != kSuccess) {
      return driver_.error(code, "cuMemCreate", device_, fmt::format("no {} bytes of its memory", whole));
    }
    held_ = true;
    return whole;
  }

  Result<void> map(std::size_t bytes, int user) {
    const Library& calls = driver_.calls();
    if (const Code code = calls.address_reserve(&address_, bytes, 0, 0, 0); code != kSuccess) {
      address_ = 0;
      return driver_.error(code, "cuMemAddressReserve", device_, "the size in a peer's handle may be wrong");
    }
    bytes_ = bytes;
    if (const Code code = calls.memory_map(address_, bytes, 0, handle_, 0); code != kSuccess) {
      return driver_.error(code, "cuMemMap", device_, "the size in a peer's handle may be wrong");
    }
    mapped_ = true;
    const std::array<Access, 2> access{Access{{kLocationDevice, device_}, kAccessReadWrite},
                                       Access{{kLocationDevice, user}, kAccessReadWrite}};
    const std::size_t users = user == device_ ? 1 : 2;
    if (const Code code = calls.memory_access(address_, bytes, access.data(), users); code != kSuccess) {
      return driver_.error(code, "cuMemSetAccess", user, "this GPU cannot reach the peer's");
    }
    return {};
  }

 private:
  CudaDriver& driver_;
  CudaContext context_;
  int device_;
  MemoryHandle handle_ = 0;
  bool held_ = false;
  Address address_ = 0;
  std::size_t bytes_ = 0;
  bool mapped_ = false;
};

/// A descriptor of another process, as one of ours.
Result<Fd> take_descriptor(std::int32_t pid, std::int32_t number) {
  if (pid <= 0 || number < 0) return Error(Status::invalid, "a peer's handle names no process or no descriptor");
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) {
    return Error(errno == ESRCH ? Status::peer_lost : Status::io,
                 fmt::format("process {}, whose GPU memory is wanted: {}", pid, std::strerror(errno)));
  }
  Fd taken(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
  if (!taken) {
    const int why = errno;
    return Error(
        why == EPERM ? Status::refused : Status::io,
        fmt::format("descriptor {} of process {}: {}{}", number, pid, std::strerror(why),
                    why == EPERM ? ": it must be allowed to trace that process (kernel.yama.ptrace_scope)" : ""));
  }
  return taken;
}

}  // namespace

Result<std::unique_ptr<Shared>> CudaDriver::share(const Allocation& allocation) {
  auto made = context(allocation.device);
  if (!made) return std::move(made.error());
  const auto found = find(as_pointer(allocation.base));
  if (!found || found->base != allocation.base || found->bytes != allocation.bytes || found->id != allocation.id) {
    return Error(Status::not_found, "the allocation that is to be shared has been freed");
  }
  ShareHandle handle;
  handle.pid = ::getpid();
  handle.owner = owner_;
  handle.device_uuid = gpus_[static_cast<std::size_t>(allocation.device)]->uuid.bytes;
  handle.bytes = allocation.bytes;
  handle.id = allocation.id;
  const Current current(calls_, *made);
  if (current.code() != kSuccess) return error(current.code(), "cuCtxPushCurrent", allocation.device, "not shared");
  PointerFacts facts;
  if (const Code code = ask(allocation.base, facts); code != kSuccess) {
    return error(code, "cuPointerGetAttributes", allocation.device, "not shared");
  }
  return (facts.ipc_capable & 0xff) != 0 ? share_ipc(allocation, handle) : share_descriptor(allocation, handle);
}

Result<std::unique_ptr<Shared>> CudaDriver::share_ipc(const Allocation& allocation, ShareHandle handle) {
  IpcHandle name{};
  if (const Code code = calls_.ipc_get(&name, allocation.base); code != kSuccess) {
    return error(code, "cuIpcGetMemHandle", allocation.device, "other processes cannot map this memory");
  }
  handle.kind = ShareHandle::Kind::ipc;
  handle.ipc = name.bytes;
  return std::unique_ptr<Shared>(std::make_unique<SharedMemory>(handle, Fd()));
}

Result<std::unique_ptr<Shared>> CudaDriver::share_descriptor(const Allocation& allocation, ShareHandle handle) {
  MemoryHandle memory = 0;
  if (const Code code = calls_.memory_retain(&memory, as_pointer(allocation.base)); code != kSuccess) {
    const Error why = error(code, "cuMemRetainAllocationHandle", allocation.device,
                            "memory of a pool (cudaMallocAsync) cannot be shared: use cudaMalloc");
    return Error(Status::unsupported, why.message());
  }
  int descriptor = -1;
  const Code code = calls_.memory_export(&descriptor, memory, kHandlePosixDescriptor, 0);
  calls_.memory_release(memory);
  if (code != kSuccess) {
    const Error why = error(code, "cuMemExportToShareableHandle", allocation.device,
                            "create it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or use cudaMalloc");
    return Error(Status::unsupported, why.message());
  }
  handle.kind = ShareHandle::Kind::descriptor;
  handle.descriptor = descriptor;
  return std::unique_ptr<Shared>(std::make_unique<SharedMemory>(handle, Fd(descriptor)));
}

Result<std::unique_ptr<Mapping>> CudaDriver::map(const ShareHandle& handle, int device) {
  if (handle.kind != ShareHandle::Kind::ipc && handle.kind != ShareHandle::Kind::descriptor) {
    return Error(Status::invalid, "a peer's handle of GPU memory is of no known kind");
  }
  if (handle.owner == owner_) {
    return Error(Status::invalid, "the handle is this process's own: its memory is here already");
  }
  if (handle.bytes == 0) return Error(Status::invalid, "a peer's handle of GPU memory names no bytes");
  const int owner = find_device(handle.device_uuid);
  if (owner < 0) {
    return Error(Status::unsupported,
                 "a peer's memory is on a GPU that this process does not see: see CUDA_VISIBLE_DEVICES");
  }
  const int user = device < 0 ? owner : device;
  return handle.kind == ShareHandle::Kind::ipc ? map_ipc(handle, owner, user) : map_descriptor(handle, owner, user);
}

Result<Address> CudaDriver::open_ipc(const ShareHandle& handle, CudaContext context, int owner) {
  const IpcKey key{handle.ipc, handle.id, handle.bytes, context};
  const std::lock_guard lock(mutex_);
  // Some drivers count how often a handle is open, older ones refuse the second time: opened once here.
  if (const auto open = open_ipc_.find(key); open != open_ipc_.end()) {
    ++open->second.users;
    return open->second.address;
  }
  Address address = 0;
  if (const Code code = calls_.ipc_open(&address, IpcHandle{handle.ipc}, kIpcLazyPeerAccess); code != kSuccess) {
    if (code == kAlreadyMapped) {
      return error(code, "cuIpcOpenMemHandle", owner, "what was there before is mapped still: unmap it first");
    }
    return error(code, "cuIpcOpenMemHandle", owner,
                 "the peer's memory is gone, or the GPUs do not reach each other (`nvidia-smi topo -p2p r`)");
  }
  PointerFacts facts;
  const Code code = ask(address, facts);
  const bool fits =
      code == kSuccess && address >= facts.range_start &&
      handle.bytes <= facts.range_bytes - std::min<std::uint64_t>(address - facts.range_start, facts.range_bytes);
  if (!fits || static_cast<int>(facts.device & 0xffffffff) != owner) {
    calls_.ipc_close(address);
    return Error(Status::refused, "a peer's handle of GPU memory says another size or device than the memory has");
  }
  open_ipc_[key] = {address, 1};
  return address;
}

void CudaDriver::close_ipc(Address address, CudaContext context) {
  const std::lock_guard lock(mutex_);
  for (auto open = open_ipc_.begin(); open != open_ipc_.end(); ++open) {
    if (open->second.address != address || std::get<CudaContext>(open->first) != context) continue;
    if (--open->second.users > 0) return;
    const Current current(calls_, context);
    calls_.ipc_close(address);
    open_ipc_.erase(open);
    return;
  }
}

Result<std::unique_ptr<Mapping>> CudaDriver::map_ipc(const ShareHandle& handle, int owner, int user) {
  auto made = context(user);
  if (!made) return std::move(made.error());
  const Current current(calls_, *made);
  if (current.code() != kSuccess) return error(current.code(), "cuCtxPushCurrent", user, "not mapped");
  auto address = open_ipc(handle, *made, owner);
  if (!address) return std::move(address.error());
  return std::unique_ptr<Mapping>(std::make_unique<IpcMapping>(*this, *made, *address, handle.bytes, owner));
}

Result<std::unique_ptr<Mapping>> CudaDriver::map_descriptor(const ShareHandle& handle, int owner, int user) {
  auto made = context(user);
  if (!made) return std::move(made.error());
  auto descriptor = take_descriptor(handle.pid, handle.descriptor);
  if (!descriptor) return std::move(descriptor.error());
  const Current current(calls_, *made);
  if (current.code() != kSuccess) return error(current.code(), "cuCtxPushCurrent", user, "not mapped");
  auto mapping = std::make_unique<DescriptorMapping>(*this, *made, owner);
  if (auto imported = mapping->import(descriptor->get()); !imported) return std::move(imported.error());
  if (auto mapped = mapping->map(handle.bytes, user); !mapped) return std::move(mapped.error());
  return std::unique_ptr<Mapping>(std::move(mapping));
}

Result<std::unique_ptr<Mapping>> CudaDriver::allocate(int device, std::size_t bytes) {
  auto made = context(device);
  if (!made) return std::move(made.error());
  const Current current(calls_, *made);
  if (current.code() != kSuccess) return error(current.code(), "cuCtxPushCurrent", device, "nothing is allocated");
  auto mapping = std::make_unique<DescriptorMapping>(*this, *made, device);
  auto whole = mapping->create(bytes);
  if (!whole) return std::move(whole.error());
  if (auto mapped = mapping->map(*whole, device); !mapped) return std::move(mapped.error());
  return std::unique_ptr<Mapping>(std::move(mapping));
}

bool CudaDriver::atomics_reach(int device, int owner) {
  if (!is_device(device) || !is_device(owner)) return false;
  if (device == owner) return true;
  const auto handle = [&](int number) { return gpus_[static_cast<std::size_t>(number)]->handle; };
  int native = 0;
  return calls_.p2p_attribute(&native, kP2pNativeAtomics, handle(device), handle(owner)) == kSuccess && native != 0;
}

}  // namespace railyard::accelerator::cuda
