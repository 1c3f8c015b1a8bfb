/// Whose memory an address is; pinned host memory.
#include <fmt/format.h>

#include <utility>

#include "accelerator/cuda.hpp"

namespace railyard::accelerator::cuda {

namespace {

constexpr std::size_t kWordBytes = 128;  ///< adjacent cache lines are fetched in pairs
constexpr std::size_t kWordPageBytes = 4096;
constexpr std::uint64_t kMappedId = std::uint64_t{1} << 63;  ///< ids of physical allocations count for themselves

class HostMemory final : public Pinned {
 public:
  HostMemory(const CudaDriver& driver, CudaContext context, std::span<std::byte> memory, std::byte* device_address,
             bool allocated)
      : driver_(driver), context_(context), memory_(memory), device_address_(device_address), allocated_(allocated) {}
  ~HostMemory() override {
    const Library& calls = driver_.calls();
    const Current current(calls, context_);
    // Fails only in a process that is ending, whose driver is gone already.
    static_cast<void>(allocated_ ? calls.host_free(memory_.data()) : calls.host_unregister(memory_.data()));
  }
  std::span<std::byte> memory() const override { return memory_; }
  std::byte* device_address() const override { return device_address_; }

 private:
  const CudaDriver& driver_;
  CudaContext context_;
  std::span<std::byte> memory_;
  std::byte* device_address_;
  bool allocated_;
};

}  // namespace

Code CudaDriver::ask(Address address, PointerFacts& facts) {
  // The driver fills int or bool into some of these: low bytes of words that are zero.
  std::array<int, 11> attributes{kPointerMemoryType,   kPointerBufferId,     kPointerIsManaged, kPointerDevice,
                                 kPointerIsIpcCapable, kPointerRangeStart,   kPointerRangeSize, kPointerMemoryPool,
                                 kPointerMappingSize,  kPointerMappingStart, kPointerBlockId};
  std::array<void*, 11> values{&facts.type,          &facts.buffer_id,     &facts.managed,     &facts.device,
                               &facts.ipc_capable,   &facts.range_start,   &facts.range_bytes, &facts.pool,
                               &facts.mapping_bytes, &facts.mapping_start, &facts.block_id};
  constexpr unsigned kOld = 8;
  const bool asks_mappings = asks_mappings_.load(std::memory_order_relaxed);
  Code code = calls_.pointer_attributes(asks_mappings ? 11 : kOld, attributes.data(), values.data(), address);
  if (code == kInvalidValue && asks_mappings) {  // a driver before 12.x does not know the last three
    facts = {};
    code = calls_.pointer_attributes(kOld, attributes.data(), values.data(), address);
    if (code == kSuccess) asks_mappings_.store(false, std::memory_order_relaxed);
  }
  return code;
}

std::optional<Allocation> CudaDriver::find(const void* address) {
  PointerFacts facts;
  Code code = kInvalidContext;
  {
    const Current none(calls_, nullptr);
    code = ask(as_address(address), facts);
  }
  if (code == kInvalidContext) {  // the thread has none
    auto context = any_context();
    if (!context) return std::nullopt;
    const Current current(calls_, *context);
    code = ask(as_address(address), facts);
  }
  if (code != kSuccess || facts.type != kMemoryTypeDevice || (facts.managed & 0xff) != 0) return std::nullopt;
  Allocation found{.device = static_cast<int>(facts.device & 0xffffffff),
                   .base = facts.range_start,
                   .bytes = facts.range_bytes,
                   .id = facts.buffer_id};
  // Mapped by its owner (cuMemMap): the range may be many physical allocations, and each can come and go.
  if ((facts.ipc_capable & 0xff) == 0 && facts.pool == 0 && facts.mapping_bytes != 0) {
    found.base = facts.mapping_start;
    found.bytes = facts.mapping_bytes;
    if (facts.block_id != 0) found.id = facts.block_id | kMappedId;
  }
  const std::uintptr_t wanted = as_address(address);
  if (!is_device(found.device) || wanted < found.base || wanted - found.base >= found.bytes) return std::nullopt;
  return found;
}

Result<std::unique_ptr<Pinned>> CudaDriver::allocate_pinned(std::size_t bytes) {
  if (bytes == 0) return Error(Status::invalid, "pinned memory of no bytes");
  auto context = any_context();
  if (!context) return std::move(context.error());
  const Current current(calls_, *context);
  void* memory = nullptr;
  Code code = current.code();
  if (code == kSuccess) code = calls_.host_allocate(&memory, bytes, kHostPortable | kHostDeviceMap);
  if (code != kSuccess) {
    return error(code, "cuMemHostAlloc", -1, fmt::format("no {} bytes of pinned memory; see `ulimit -l`", bytes));
  }
  Address device = 0;
  code = calls_.host_device_address(&device, memory, 0);
  if (code != kSuccess) {
    calls_.host_free(memory);
    return error(code, "cuMemHostGetDevicePointer", -1, "pinned memory that devices cannot reach");
  }
  return std::unique_ptr<Pinned>(std::make_unique<HostMemory>(
      *this, *context, std::span(static_cast<std::byte*>(memory), bytes), as_pointer(device), true));
}

Result<std::unique_ptr<Pinned>> CudaDriver::pin(std::span<std::byte> memory) {
  if (memory.empty()) return Error(Status::invalid, "no memory to pin");
  auto context = any_context();
  if (!context) return std::move(context.error());
  const Current current(calls_, *context);
  Code code = current.code();
  if (code == kSuccess) code = calls_.host_register(memory.data(), memory.size(), kHostPortable | kHostDeviceMap);
  if (code != kSuccess) {
    return error(code, "cuMemHostRegister", -1, "the memory is pinned already, or not the processor's");
  }
  Address device = 0;
  code = calls_.host_device_address(&device, memory.data(), 0);
  if (code != kSuccess) {
    calls_.host_unregister(memory.data());
    return error(code, "cuMemHostGetDevicePointer", -1, "pinned memory that devices cannot reach");
  }
  return std::unique_ptr<Pinned>(std::make_unique<HostMemory>(*this, *context, memory, as_pointer(device), false));
}

// Freeing pinned memory waits for the GPU, and so for kernels that may wait for us: pages of words stay.
Result<ProgressWord> CudaDriver::take_word(int device) {
  auto made = context(device);
  if (!made) return std::move(made.error());
  {
    const std::lock_guard lock(mutex_);
    if (!free_words_.empty()) {
      const ProgressWord word = free_words_.back();
      free_words_.pop_back();
      word.host->store(0, std::memory_order_relaxed);
      return word;
    }
  }
  auto page = allocate_pinned(kWordPageBytes);
  if (!page) return std::move(page.error());
  const std::lock_guard lock(mutex_);
  const auto memory = (*page)->memory();
  for (std::size_t offset = kWordBytes; offset < memory.size(); offset += kWordBytes) {
    free_words_.push_back(
        {new (memory.data() + offset) std::atomic<std::uint64_t>(0), as_address((*page)->device_address() + offset)});
  }
  const ProgressWord word{new (memory.data()) std::atomic<std::uint64_t>(0), as_address((*page)->device_address())};
  word_pages_.push_back(std::move(*page));
  return word;
}

void CudaDriver::return_word(ProgressWord word) {
  const std::lock_guard lock(mutex_);
  free_words_.push_back(word);
}

}  // namespace railyard::accelerator::cuda
