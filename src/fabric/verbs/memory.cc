/// Registered memory: of the host by its address, of GPUs by dma-buf descriptors.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "fabric/verbs/rail.hpp"

namespace railyard::fabric::verbs {

/// By the descriptor that the caller has, or else by one of our own, which is closed again: the registration keeps the
/// memory.
Result<MemoryRegion> VerbsRail::register_on_device(std::span<std::byte> memory, Access access, int flags) {
  accelerator::DmaBuf own;
  if (access.dma_buf < 0) {
    accelerator::Driver* const driver = accelerator::driver();
    if (driver == nullptr || !port_.dma_bufs)
      return Error(Status::unsupported,
                   fmt::format("{}: this device registers no memory of GPUs (dma-buf): its driver or rdma-core is too "
                               "old, or there is none for GPUs",
                               name_));
    auto made = driver->dma_buf(memory);
    if (!made) return std::move(made.error());
    own = std::move(*made);
    access.dma_buf = own.descriptor.get();
    access.dma_buf_offset = own.offset;
  }
  ibv_mr* const made =
      library_->reg_dmabuf_mr == nullptr
          ? (errno = EOPNOTSUPP, nullptr)
          : library_->reg_dmabuf_mr(domain_.get(), access.dma_buf_offset, memory.size(),
                                    reinterpret_cast<std::uint64_t>(memory.data()), access.dma_buf, flags);
  if (made != nullptr) return MemoryRegion(made, {library_});
  // What else a device or its driver may answer says that this memory is not for it.
  const int code = errno;
  return Error(code == ENOMEM ? Status::no_memory
               : code == EIO  ? Status::io
                              : Status::unsupported,
               fmt::format("{}: could not register {} bytes of a dma-buf at {}: {}", name_, memory.size(),
                           static_cast<const void*>(memory.data()), std::strerror(code)));
}

Result<Registration> VerbsRail::register_memory(std::span<std::byte> memory, Access access) {
  if (auto running = refuse_if_gone(); !running) return std::move(running.error());
  int flags = IBV_ACCESS_LOCAL_WRITE;
  if (access.remote) {
    flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (capabilities_.native_atomics) flags |= IBV_ACCESS_REMOTE_ATOMIC;
  }
  const auto base = reinterpret_cast<std::uint64_t>(memory.data());
  Held held{{}, access.device};
  if (access.device >= 0 || access.dma_buf >= 0) {
    auto region = register_on_device(memory, access, flags);
    if (!region) return std::move(region.error());
    held.region = std::move(*region);
    if (access.device >= 0)
      if (auto ready = prepare_flush(access.device); !ready) return std::move(ready.error());
  } else {
    auto region = register_on_host(memory, access, flags);
    if (!region) return std::move(region.error());
    held.region = std::move(*region);
  }
  Registration registration;
  // The descriptor is the key itself: nothing is looked up when it is used.
  registration.descriptor[0] = registration.descriptor[1] = reinterpret_cast<void*>(
      static_cast<std::uintptr_t>(held.region->lkey) | (access.device >= 0 ? kOnDevice : std::uintptr_t{0}));
  registration.key = held.region->rkey;
  registration.remote_base = base;
  registration.id[0] = registration.id[1] = next_held_;
  held_.emplace(next_held_++, std::move(held));
  return registration;
}

Result<MemoryRegion> VerbsRail::register_on_host(std::span<std::byte> memory, Access access, int flags) {
  const auto hold = [&](int wanted) {
    // Bytes of bulk data may overtake each other on the way to memory: what tells of them, the completion, does not.
    if (access.bulk && library_->reg_mr_iova2 != nullptr)
      return library_->reg_mr_iova2(domain_.get(), memory.data(), memory.size(),
                                    reinterpret_cast<std::uint64_t>(memory.data()),
                                    static_cast<unsigned>(wanted) | IBV_ACCESS_RELAXED_ORDERING);
    return library_->reg_mr(domain_.get(), memory.data(), memory.size(), wanted);
  };
  MemoryRegion region(hold(flags), {library_});
  // A source that its program may only read.
  if (!region && !access.remote && (errno == EFAULT || errno == EACCES)) region.reset(hold(0));
  if (region) return region;
  const int code = errno;
  return Error(code == ENOMEM ? Status::no_memory : Status::io,
               fmt::format("{}: could not register {} bytes at {}: {}{}", name_, memory.size(),
                           static_cast<const void*>(memory.data()), std::strerror(code),
                           code == ENOMEM ? " (often: too little memory may be locked; see `ulimit -l`)" : ""));
}

void VerbsRail::revoke(const Registration& registration) {
  const auto held = held_.find(registration.id[0]);
  if (held == held_.end()) return;
  if (FlushedGpu* const gpu = flush_.find(held->second.device)) --gpu->registrations;
  held_.erase(held);
}

}  // namespace railyard::fabric::verbs
