/// Device memory of this process, host memory, and what an address is.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "doubles/cuda/core.hpp"

namespace cuda_double {

namespace {

constexpr const char* kFileName = "cuda-double";
constexpr std::size_t kPage = 4096;

std::shared_ptr<Block> map_secretly(int descriptor, std::size_t bytes, int device) {
  struct stat facts {};
  void* const secret = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (secret == MAP_FAILED || ::fstat(descriptor, &facts) != 0) {
    ::close(descriptor);
    return nullptr;
  }
  auto block = std::make_shared<Block>();
  block->device = device;
  block->bytes = bytes;
  block->descriptor = descriptor;
  block->secret = static_cast<std::byte*>(secret);
  block->inode = facts.st_ino;
  return block;
}

template <typename Ranges>
auto find_in(Ranges& ranges, Address address) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return ranges.end();
  const auto found = std::prev(after);
  return address - found->first < found->second.bytes ? found : ranges.end();
}

bool fill(void* value, int attribute, Address address, State& all) {
  const auto put = [&](auto number) { std::memcpy(value, &number, sizeof(number)); };
  const auto range = all.find(address);
  const auto host = all.find_host(address);
  const bool is_device = range != all.ranges.end();
  const bool is_host = !is_device && host != all.hosts.end();
  const bool managed = is_host && host->second.managed;
  switch (attribute) {
    case cuda::kPointerMemoryType:
      put(is_device || managed ? cuda::kMemoryTypeDevice : is_host ? cuda::kMemoryTypeHost : 0U);
      return true;
    case cuda::kPointerBufferId:
      put(is_device ? static_cast<unsigned long long>(range->second.id) : 0ULL);
      return true;
    case cuda::kPointerIsManaged:
      put(managed ? 1U : 0U);
      return true;
    case cuda::kPointerDevice:
      put(is_device ? range->second.block->device : managed ? 0 : -2);
      return true;
    case cuda::kPointerIsIpcCapable:
      put(is_device && range->second.kind == RangeKind::allocated);
      return true;
    case cuda::kPointerRangeStart:
      put(is_device ? range->first : is_host ? host->first : 0ULL);
      return true;
    case cuda::kPointerRangeSize:
      put(is_device ? range->second.bytes : is_host ? host->second.bytes : std::size_t{0});
      return true;
    case cuda::kPointerMemoryPool:
      put(static_cast<void*>(nullptr));
      return true;
    default:
      break;
  }
  if (all.version < 12) return false;
  switch (attribute) {
    case cuda::kPointerMappingStart:  // small allocations share a mapping
      put(!is_device ? 0ULL : range->second.kind == RangeKind::mapped ? range->first : range->first / kPage * kPage);
      return true;
    case cuda::kPointerMappingSize:
      put(!is_device ? std::size_t{0} : round_up(range->second.bytes, kPage));
      return true;
    case cuda::kPointerBlockId:
      put(is_device ? static_cast<unsigned long long>(range->second.block->id) : 0ULL);
      return true;
    default:
      return false;
  }
}

}  // namespace

Block::~Block() {
  if (secret != nullptr) ::munmap(secret, bytes);
  if (descriptor >= 0) ::close(descriptor);
}

std::shared_ptr<Block> Block::create(std::size_t bytes, int device) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%s-%d", kFileName, device);
  const int descriptor = ::memfd_create(name.data(), MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  if (::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    ::close(descriptor);
    return nullptr;
  }
  return map_secretly(descriptor, bytes, device);
}

std::shared_ptr<Block> Block::adopt(int descriptor) {
  std::array<char, 64> link{};
  std::array<char, 64> name{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  int device = -1;
  struct stat facts {};
  const std::string form = std::string("/memfd:") + kFileName + "-%d";
  if (::readlink(link.data(), name.data(), name.size() - 1) <= 0 ||
      std::sscanf(name.data(), form.c_str(), &device) != 1 || ::fstat(descriptor, &facts) != 0) {
    return nullptr;
  }
  const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return own < 0 ? nullptr : map_secretly(own, static_cast<std::size_t>(facts.st_size), device);
}

std::map<Address, Range>::iterator State::find(Address address) { return find_in(ranges, address); }
std::map<Address, HostRange>::iterator State::find_host(Address address) { return find_in(hosts, address); }

std::optional<Reached> State::reach(Address address, std::size_t bytes, bool pageable) {
  if (const auto range = find(address); range != ranges.end()) {
    const std::size_t offset = address - range->first;
    if (bytes > range->second.bytes - offset || !range->second.accessible) return std::nullopt;
    return Reached{range->second.block->secret + offset, range->second.block};
  }
  if (!pageable) {
    const auto host = find_host(address);
    if (host == hosts.end() || bytes > host->second.bytes - (address - host->first)) return std::nullopt;
  }
  return Reached{reinterpret_cast<std::byte*>(address), nullptr};
}

Address reserve(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, round_up(bytes, kPage), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? 0 : reinterpret_cast<Address>(memory);
}

void unreserve(Address address, std::size_t bytes) {
  ::munmap(reinterpret_cast<void*>(address), round_up(bytes, kPage));
}

CUDA_DOUBLE_CALL Code cuMemAlloc_v2(Address* address, std::size_t bytes) {
  if (kernel_holds_up()) return cuda::kNotReady;
  const int device = current_device();
  if (device < 0) return cuda::kInvalidContext;
  if (bytes == 0) return cuda::kInvalidValue;
  State& all = state();
  auto block = Block::create(round_up(bytes, kPage), device);
  const Address base = block ? reserve(bytes) : 0;
  if (base == 0) return cuda::kOutOfMemory;
  const std::lock_guard lock(all.mutex);
  block->id = all.next_id++;
  all.ranges[base] = Range{.bytes = bytes, .block = block, .kind = RangeKind::allocated, .id = all.next_id++};
  *address = base;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemAllocManaged(Address* address, std::size_t bytes, unsigned /*flags*/) {
  if (current_device() < 0) return cuda::kInvalidContext;
  void* const memory = std::aligned_alloc(kPage, round_up(bytes, kPage));
  if (memory == nullptr) return cuda::kOutOfMemory;
  const std::lock_guard lock(state().mutex);
  *address = reinterpret_cast<Address>(memory);
  state().hosts[*address] = {.bytes = bytes, .managed = true};
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemFree_v2(Address address) {
  if (current_device() < 0) return cuda::kInvalidContext;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (const auto host = all.hosts.find(address); host != all.hosts.end() && host->second.managed) {
    all.hosts.erase(host);
    std::free(reinterpret_cast<void*>(address));
    return cuda::kSuccess;
  }
  const auto range = all.ranges.find(address);
  if (range == all.ranges.end() || range->second.kind != RangeKind::allocated) return cuda::kInvalidValue;
  if (range->second.block->nic_mappings != 0) ++all.freed_under_nic;
  unreserve(address, range->second.bytes);
  all.ranges.erase(range);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemHostAlloc(void** address, std::size_t bytes, unsigned /*flags*/) {
  if (kernel_holds_up()) return cuda::kNotReady;
  if (current_device() < 0) return cuda::kInvalidContext;
  if (bytes == 0) return cuda::kInvalidValue;
  void* const memory = std::aligned_alloc(kPage, round_up(bytes, kPage));
  if (memory == nullptr) return cuda::kOutOfMemory;
  const std::lock_guard lock(state().mutex);
  state().hosts[reinterpret_cast<Address>(memory)] = {.bytes = bytes};
  *address = memory;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemFreeHost(void* address) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto host = all.hosts.find(reinterpret_cast<Address>(address));
  if (host == all.hosts.end() || host->second.registered || host->second.managed) return cuda::kInvalidValue;
  all.hosts.erase(host);
  std::free(address);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned /*flags*/) {
  if (kernel_holds_up()) return cuda::kNotReady;
  constexpr Code kAlreadyRegistered = 712;
  if (current_device() < 0) return cuda::kInvalidContext;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto first = reinterpret_cast<Address>(address);
  if (bytes == 0 || all.find(first) != all.ranges.end()) return cuda::kInvalidValue;
  const auto next = all.hosts.lower_bound(first);
  if (all.find_host(first) != all.hosts.end() || (next != all.hosts.end() && next->first < first + bytes)) {
    return kAlreadyRegistered;
  }
  all.hosts[first] = {.bytes = bytes, .registered = true};
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemHostUnregister(void* address) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto host = all.hosts.find(reinterpret_cast<Address>(address));
  if (host == all.hosts.end() || !host->second.registered) return cuda::kInvalidValue;
  all.hosts.erase(host);
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuMemHostGetDevicePointer_v2(Address* device, void* host, unsigned flags) {
  const std::lock_guard lock(state().mutex);
  const auto address = reinterpret_cast<Address>(host);
  if (flags != 0 || state().find_host(address) == state().hosts.end()) return cuda::kInvalidValue;
  *device = address;
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL Code cuPointerGetAttributes(unsigned count, int* attributes, void** values, Address address) {
  State& all = state();
  if (!all.started) return cuda::kNotInitialized;
  ++all.questions;
  const std::lock_guard lock(all.mutex);
  for (unsigned i = 0; i < count; ++i) {
    if (!fill(values[i], attributes[i], address, all)) return cuda::kInvalidValue;
  }
  return cuda::kSuccess;
}

CUDA_DOUBLE_CALL std::uint64_t cuda_double_questions() { return state().questions.load(); }

CUDA_DOUBLE_CALL Code cuMemGetAddressRange_v2(Address* base, std::size_t* bytes, Address address) {
  const std::lock_guard lock(state().mutex);
  const auto range = state().find(address);
  if (range == state().ranges.end()) return cuda::kInvalidValue;
  if (base != nullptr) *base = range->first;
  if (bytes != nullptr) *bytes = range->second.bytes;
  return cuda::kSuccess;
}

}  // namespace cuda_double
