/// The CUDA driver behind accelerator.hpp. One object for the process, which nothing ever destroys: the driver's own
/// state lives as long.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "accelerator/accelerator.hpp"
#include "accelerator/cuda_library.hpp"

namespace railyard::accelerator::cuda {

inline Address as_address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
inline std::byte* as_pointer(Address address) { return reinterpret_cast<std::byte*>(address); }

/// Makes a context current for one call or a few; what was current is so again at the end. Calls meanwhile are allowed
/// although some thread may be capturing a graph, and leave the capture valid: none of them belongs to it.
class Current {
 public:
  Current(const Library& calls, CudaContext context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  Code code() const { return code_; }

 private:
  const Library& calls_;
  int capture_mode_ = kCaptureRelaxed;
  bool pushed_ = false;
  Code code_ = kSuccess;
};

/// What the driver says of an address.
struct PointerFacts {
  std::uint64_t type = 0;
  std::uint64_t buffer_id = 0;
  std::uint64_t managed = 0;
  std::uint64_t device = 0;
  std::uint64_t ipc_capable = 0;
  std::uint64_t range_start = 0;
  std::uint64_t range_bytes = 0;
  std::uint64_t pool = 0;
  std::uint64_t mapping_bytes = 0;
  std::uint64_t mapping_start = 0;
  std::uint64_t block_id = 0;
};

/// A word in pinned host memory that a queue's stream writes to, on a cache line of its own.
struct ProgressWord {
  std::atomic<std::uint64_t>* host = nullptr;
  Address device = 0;
};

class CudaDriver final : public Driver {
 public:
  static Result<std::unique_ptr<CudaDriver>> open();

  std::string_view name() const override { return "cuda"; }
  int devices() const override { return static_cast<int>(gpus_.size()); }
  std::string bus_id(int device) const override;
  std::optional<Allocation> find(const void* address) override;
  Result<std::unique_ptr<Shared>> share(const Allocation& allocation) override;
  Result<std::unique_ptr<Mapping>> map(const ShareHandle& handle, int device) override;
  Result<std::unique_ptr<Mapping>> allocate(int device, std::size_t bytes) override;
  bool atomics_reach(int device, int owner) override;
  Result<std::unique_ptr<Pinned>> allocate_pinned(std::size_t bytes) override;
  Result<std::unique_ptr<Pinned>> pin(std::span<std::byte> memory) override;
  Result<std::unique_ptr<CopyQueue>> open_queue(int device) override;
  bool has_dma_bufs(int device) override;
  Result<DmaBuf> dma_buf(std::span<std::byte> memory) override;
  NicWrites nic_writes(int device) override;
  Result<void> flush_writes(int device) override;

  const Library& calls() const { return calls_; }
  /// Of a device that is there; 0 where the driver does not know it.
  int attribute(int device, int number) const;
  /// The device's primary context, which the CUDA runtime uses too. Made at the first call, kept for good.
  Result<CudaContext> context(int device);
  /// "cuMemcpyAsync on GPU 0 (0000:1b:00.0): CUDA_ERROR_ILLEGAL_ADDRESS: `advice`".
  Error error(Code code, const char* call, int device, std::string_view advice) const;

  Result<ProgressWord> take_word(int device);
  void return_word(ProgressWord word);
  /// One mapping less of what `open_ipc` opened.
  void close_ipc(Address address, CudaContext context);

 private:
  struct Gpu {
    Device handle = 0;
    Uuid uuid{};
    std::string bus_id;
    bool writes_values = false;
    std::atomic<CudaContext> context{nullptr};
  };
  struct OpenIpc {
    Address address = 0;
    int users = 0;
  };
  /// The driver's name, id, size and who uses it: the name alone may come again for another allocation.
  using IpcKey = std::tuple<std::array<std::byte, 64>, std::uint64_t, std::uint64_t, CudaContext>;

  explicit CudaDriver(const Library& calls) : calls_(calls) {}
  bool is_device(int device) const { return device >= 0 && device < devices(); }
  int find_device(std::span<const std::byte, 16> uuid) const;
  Code ask(Address address, PointerFacts& facts);
  /// A context for memory of the host: one that is there, if any, since each takes hundreds of MiB of its GPU.
  Result<CudaContext> any_context();
  Result<std::unique_ptr<Shared>> share_ipc(const Allocation& allocation, ShareHandle handle);
  Result<std::unique_ptr<Shared>> share_descriptor(const Allocation& allocation, ShareHandle handle);
  Result<std::unique_ptr<Mapping>> map_ipc(const ShareHandle& handle, int owner, int user);
  Result<std::unique_ptr<Mapping>> map_descriptor(const ShareHandle& handle, int owner, int user);
  Result<Address> open_ipc(const ShareHandle& handle, CudaContext context, int owner);

  const Library calls_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::uint64_t owner_ = 0;
  std::atomic<bool> asks_mappings_{true};  ///< the driver knows of mappings and block ids (12.x)

  std::mutex mutex_;  ///< of what follows
  std::map<IpcKey, OpenIpc> open_ipc_;
  std::vector<ProgressWord> free_words_;
  std::vector<std::unique_ptr<Pinned>> word_pages_;
};

/// The queue's end of open_queue.
Result<std::unique_ptr<CopyQueue>> open_copy_queue(CudaDriver& driver, int device, CudaContext context,
                                                   bool writes_values);

}  // namespace railyard::accelerator::cuda
