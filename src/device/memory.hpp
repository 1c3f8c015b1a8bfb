/// What kernels and the proxy share, and how kernels reach it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "accelerator/accelerator.hpp"
#include "railyard/device.hpp"
#include "window/window_state.hpp"

namespace railyard::device_detail {

using device::detail::BarrierState;
using device::detail::Command;
using device::detail::Handle;
using device::detail::Peer;
using device::detail::Report;
using device::detail::RingProgress;
using device::detail::RingTail;
using device::detail::Word;

inline constexpr std::size_t kLineWords = 8;

/// Where things lie in the block that both sides touch (host memory that the device has mapped) and in the one that
/// kernels alone touch (memory of the device).
struct BlockLayout {
  BlockLayout(std::size_t rings, std::size_t depth, std::size_t ranks, std::size_t barriers);

  std::size_t commands = 0;
  std::size_t progress = 0;
  std::size_t attention = 0;
  std::size_t lost = 0;
  std::size_t error = 0;
  std::size_t failure = 0;
  std::size_t fetched = 0;
  std::size_t shared_bytes = 0;

  std::size_t tails = 0;
  std::size_t posted = 0;
  std::size_t peers = 0;
  std::size_t barrier_states = 0;
  std::size_t claim = 0;
  std::size_t producer_bytes = 0;
};

/// Rounds of a barrier over so many ranks.
std::uint32_t barrier_rounds(int ranks);

/// Both blocks and whatever of the window kernels reach.
class SharedMemory {
 public:
  static Result<SharedMemory> open(window_detail::WindowState& window, const DeviceOptions& options);

  /// The proxy's own view.
  template <typename T>
  T* shared(std::size_t at) const {
    return reinterpret_cast<T*>(shared_.data() + at);
  }
  const BlockLayout& layout() const { return layout_; }
  const Handle& handle() const { return handle_; }
  /// The processor's address of a source or a destination that a kernel names.
  std::byte* host_address(std::uint64_t named) const;
  /// Where the result of a fetch goes.
  Word* fetched(std::uint32_t ring, std::uint64_t place) const {
    return shared<Word>(layout_.fetched) + ring * device::detail::kMostFetches + place;
  }
  /// The kernels may report again.
  Result<void> clear_claim();

 private:
  explicit SharedMemory(const BlockLayout& layout) : layout_(layout) {}
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Block = std::unique_ptr<std::byte, Free>;
  static Block allocate(std::size_t bytes);
  Result<void> take_blocks(const DeviceOptions& options);
  Result<void> reach_window(window_detail::WindowState& window, const DeviceOptions& options);
  /// What kernels call memory of the processor's. `ours`: nobody else can have made it reachable.
  Result<std::byte*> reach(std::span<std::byte> memory, bool ours);
  /// A rank's entry in the table: null where kernels cannot reach it.
  Result<Peer> reach_peer(const window_detail::WindowState& window, int rank, const DeviceOptions& options);
  Peer reach_device(const window_detail::WindowState& window, int rank, const DeviceOptions& options);
  Result<void> upload(std::span<const Peer> peers);

  struct Reached {
    std::span<std::byte> host;
    std::byte* device = nullptr;
  };

  BlockLayout layout_;
  accelerator::Driver* driver_ = nullptr;
  int device_ = DeviceOptions::kHost;
  bool adds_ = true;  ///< kernels may add to words in host memory that processors add to
  std::unique_ptr<accelerator::Pinned> pinned_;
  std::vector<std::unique_ptr<accelerator::Pinned>> pins_;
  std::vector<std::unique_ptr<accelerator::Mapping>> mappings_;  ///< of peers' device memory
  std::vector<Reached> reached_;
  Block own_shared_;
  Block own_producer_;
  std::span<std::byte> shared_;    ///< the processor's address
  std::byte* producer_ = nullptr;  ///< the kernels' address
  Handle handle_;
};

}  // namespace railyard::device_detail
