/// Slab: small buffers of one size, registered on every rail, for messages on the control lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fabric/rail.hpp"
#include "memory/region.hpp"

namespace railyard::memory {

/// One buffer. It is its own PostContext, so that its completion leads straight back to it.
struct Buffer : fabric::PostContext {
  std::byte* data = nullptr;
  std::uint32_t capacity = 0;
  std::uint32_t bytes = 0;             ///< how much of it is in use: the owner's to set
  Buffer* next = nullptr;              ///< the free list's, or the owner's queue
  void* owner = nullptr;               ///< the taker's own
  void* const* descriptors = nullptr;  ///< by rail: the block's registrations on the control lanes

  /// The first `bytes` of it, to send on that rail.
  fabric::LocalChunk chunk(std::size_t rail) const noexcept { return {data, bytes, descriptors[rail]}; }
  /// All of it, to receive into.
  fabric::LocalChunk room(std::size_t rail) const noexcept { return {data, capacity, descriptors[rail]}; }
};

/// Grows block by block up to its bound; never shrinks. One thread at a time. Must go before the rails do (or after
/// their `stop`), with no buffer posted any more.
class Slab {
 public:
  /// The first block is there at once; `most` buffers are the bound.
  static Result<Slab> open(std::span<fabric::Rail* const> rails, std::size_t buffer_bytes, std::size_t per_block,
                           std::size_t most);
  Slab(Slab&&) noexcept;
  Slab& operator=(Slab&&) noexcept;
  ~Slab();

  /// A buffer; null at the bound, or where the system has no more memory. Takes from the free list, else adds a block.
  Buffer* take() noexcept {
    if (free_ == nullptr && !grow()) return nullptr;
    Buffer* const buffer = free_;
    free_ = buffer->next;
    buffer->next = nullptr;
    buffer->bytes = 0;
    ++outstanding_;
    return buffer;
  }
  void give(Buffer* buffer) noexcept {
    buffer->next = free_;
    free_ = buffer;
    --outstanding_;
  }
  std::size_t outstanding() const noexcept { return outstanding_; }
  /// Buffers that exist: free and taken.
  std::size_t size() const noexcept { return size_; }

 private:
  struct Block;
  Slab() = default;
  bool grow() noexcept;
  Result<void> add_block();

  std::vector<fabric::Rail*> rails_;
  std::size_t buffer_bytes_ = 0;
  std::size_t per_block_ = 0;
  std::size_t most_ = 0;
  std::size_t size_ = 0;
  std::size_t outstanding_ = 0;
  Buffer* free_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace railyard::memory
