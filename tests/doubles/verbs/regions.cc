/// Registered memory and the checks of its keys.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "doubles/verbs/core.hpp"
#include "doubles/verbs/gpu_calls.hpp"

namespace railyard::verbs_double {

namespace {

// The two keys of a region differ, and so does the low byte of each: a mix-up is found out.
constexpr std::uint32_t kLocalTag = 0x5a;
constexpr std::uint32_t kRemoteTag = 0xa5;
constexpr unsigned kNeedsLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

ibv_mr* add(Domain& domain, Region* region) {
  Core& core = here();
  Device& device = device_of(domain.context);
  const auto index = static_cast<std::uint32_t>(device.regions.size());
  device.regions.push_back(region);
  region->context = domain.context;
  region->pd = &domain;
  region->handle = index;
  region->lkey = index << 8 | kLocalTag;
  region->rkey = index << 8 | kRemoteTag;
  ++domain.children;
  core.born(device, Kind::region, region);
  return region;
}

/// What all three ways to register begin with; 0: go on.
int not_possible(Domain& domain, std::string_view name, unsigned access) {
  Core& core = here();
  if (!core.known(&domain, "a registration")) return EINVAL;
  Device& device = device_of(domain.context);
  if (const int error = refused(device, name); error != 0) return error;
  if ((access & kNeedsLocalWrite) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
  if (!core.admit(device, Kind::region)) return ENOMEM;
  return 0;
}

ibv_mr* reg_mr_named(std::string_view name, ibv_pd* handle, void* address, std::size_t bytes, std::uint64_t iova,
                     unsigned access) {
  const std::lock_guard lock(here().lock);
  auto& domain = static_cast<Domain&>(*handle);
  if (const int error = not_possible(domain, name, access); error != 0) return no<ibv_mr>(error);
  auto* const region = new Region();
  region->addr = address;
  region->length = bytes;
  region->memory = static_cast<std::byte*>(address);
  region->iova = iova;
  region->access = access;
  return add(domain, region);
}

ibv_mr* reg_mr(ibv_pd* domain, void* address, std::size_t bytes, int access) {
  return reg_mr_named("reg_mr", domain, address, bytes, reinterpret_cast<std::uint64_t>(address),
                      static_cast<unsigned>(access));
}

ibv_mr* reg_mr_iova2(ibv_pd* domain, void* address, std::size_t bytes, std::uint64_t iova, unsigned access) {
  return reg_mr_named("reg_mr_iova2", domain, address, bytes, iova, access);
}

ibv_mr* reg_dmabuf_mr(ibv_pd* handle, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int descriptor,
                      int access) {
  const std::lock_guard lock(here().lock);
  auto& domain = static_cast<Domain&>(*handle);
  if (const int error = not_possible(domain, "reg_dmabuf_mr", static_cast<unsigned>(access)); error != 0) {
    return no<ibv_mr>(error);
  }
  Device& device = device_of(domain.context);
  if (!device.options.dma_buf) return no<ibv_mr>(EOPNOTSUPP);
  if (const GpuCalls gpus; gpus) {
    if (void* const gpu = gpus.attach(&device, descriptor, offset, bytes); gpu != nullptr) {
      auto* const region = new Region();
      region->length = bytes;
      region->iova = iova;
      region->access = static_cast<unsigned>(access);
      region->gpu = gpu;
      return add(domain, region);
    }
  }
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t start = offset / page * page;
  const std::size_t mapped = bytes + (offset - start);
  void* const mapping =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, static_cast<off_t>(start));
  if (mapping == MAP_FAILED) return no<ibv_mr>(errno);
  auto* const region = new Region();
  region->length = bytes;
  region->memory = static_cast<std::byte*>(mapping) + (offset - start);
  region->iova = iova;
  region->access = static_cast<unsigned>(access);
  region->mapping = mapping;
  region->mapping_bytes = mapped;
  return add(domain, region);
}

int dereg_mr(ibv_mr* handle) {
  Core& core = here();
  const std::lock_guard lock(core.lock);
  auto* const region = static_cast<Region*>(handle);
  if (!core.known(region, "dereg_mr")) return EINVAL;
  if (const int error = core.wanted_failure("dereg_mr"); error != 0) return error;
  Device& device = device_of(region->context);
  device.regions[region->handle] = nullptr;
  region->unmap();
  --static_cast<Domain*>(region->pd)->children;
  core.bury(device, Kind::region, region);
  return 0;
}

Location translate(const QueuePair& pair, std::uint32_t key, std::uint32_t tag, std::uint64_t address,
                   std::size_t bytes, unsigned access) {
  const std::vector<Region*>& regions = pair.owner->regions;
  const std::uint32_t index = key >> 8;
  if ((key & 0xff) != tag || index >= regions.size()) return {};
  const Region* const region = regions[index];
  if (region == nullptr || region->pd != pair.pd || (region->access & access) != access) return {};
  if (address < region->iova || bytes > region->length || address - region->iova > region->length - bytes) {
    return {};
  }
  const std::size_t at = address - region->iova;
  if (region->gpu != nullptr) return {nullptr, region->gpu, at};
  return {region->memory + at};
}

}  // namespace

Region::~Region() { unmap(); }

void move_bytes(const Location& to, const Location& from, std::size_t bytes) {
  if (to.gpu == nullptr && from.gpu == nullptr) {
    std::memmove(to.memory, from.memory, bytes);
    return;
  }
  const GpuCalls gpus;
  std::vector<std::byte> staged;
  const std::byte* source = from.memory;
  if (from.gpu != nullptr) {
    staged.resize(bytes);
    gpus.read(from.gpu, from.at, staged.data(), bytes);
    source = staged.data();
  }
  if (to.gpu != nullptr)
    gpus.write(to.gpu, to.at, source, bytes);
  else
    std::memcpy(to.memory, source, bytes);
}

void Region::unmap() {
  if (gpu != nullptr) GpuCalls().detach(gpu);
  gpu = nullptr;
  if (mapping != nullptr) ::munmap(mapping, mapping_bytes);
  mapping = nullptr;
}

Location Core::local(const QueuePair& pair, std::uint32_t key, std::uint64_t address, std::size_t bytes, bool write) {
  return translate(pair, key, kLocalTag, address, bytes, write ? IBV_ACCESS_LOCAL_WRITE : 0);
}

Location Core::remote(const QueuePair& pair, std::uint32_t key, std::uint64_t address, std::size_t bytes,
                      unsigned access) {
  if ((pair.settings.qp_access_flags & access) != access) return {};
  return translate(pair, key, kRemoteTag, address, bytes, access);
}

void add_region_calls(fabric::verbs::Library& calls) {
  calls.reg_mr = reg_mr;
  calls.reg_mr_iova2 = reg_mr_iova2;
  calls.reg_dmabuf_mr = reg_dmabuf_mr;
  calls.dereg_mr = dereg_mr;
}

}  // namespace railyard::verbs_double
