/// The blocks of a vector, from a caller's list or from strides.
#pragma once

#include <cstddef>
#include <span>

#include "railyard/window.hpp"

namespace railyard::window_detail {

struct BlockAt {
  std::byte* local = nullptr;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

class Blocks {
 public:
  // The engine only reads from a put's source.
  explicit Blocks(std::span<const PutBlock> puts) : size_(puts.size()), puts_(puts.data()) {}
  explicit Blocks(std::span<const GetBlock> gets) : size_(gets.size()), gets_(gets.data()) {}
  Blocks(const void* local, std::size_t offset, const Strides& strides)
      : size_(strides.bytes == 0 ? 0 : strides.count),
        first_{static_cast<std::byte*>(const_cast<void*>(local)), offset, strides.bytes},
        strides_(strides) {}

  std::size_t size() const { return size_; }
  bool is_strided() const { return puts_ == nullptr && gets_ == nullptr; }
  const BlockAt& first() const { return first_; }
  const Strides& strides() const { return strides_; }
  /// From the first byte of the first block to the last of the last, by strides that were checked.
  static std::size_t extent(const Strides& strides, std::size_t stride) {
    return (strides.count - 1) * stride + strides.bytes;
  }

  BlockAt operator[](std::size_t index) const {
    if (puts_ != nullptr) {
      const PutBlock& block = puts_[index];
      return {static_cast<std::byte*>(const_cast<void*>(block.source)), block.offset, block.bytes};
    }
    if (gets_ != nullptr) {
      const GetBlock& block = gets_[index];
      return {static_cast<std::byte*>(block.destination), block.offset, block.bytes};
    }
    return {first_.local + index * strides_.local, first_.offset + index * strides_.remote, first_.bytes};
  }

 private:
  std::size_t size_ = 0;
  const PutBlock* puts_ = nullptr;
  const GetBlock* gets_ = nullptr;
  BlockAt first_;
  Strides strides_;
};

/// Walks over blocks: leaves out empty ones, and joins those that continue each other here and there.
class JoinedBlocks {
 public:
  explicit JoinedBlocks(const Blocks& blocks) : blocks_(blocks) {}
  /// False: that was all.
  bool next(BlockAt& found) {
    while (index_ < blocks_.size() && blocks_[index_].bytes == 0) ++index_;
    if (index_ == blocks_.size()) return false;
    found = blocks_[index_++];
    for (; index_ < blocks_.size(); ++index_) {
      const BlockAt after = blocks_[index_];
      if (after.bytes == 0) continue;
      if (after.local != found.local + found.bytes || after.offset != found.offset + found.bytes) break;
      found.bytes += after.bytes;
    }
    return true;
  }

 private:
  const Blocks& blocks_;
  std::size_t index_ = 0;
};

}  // namespace railyard::window_detail
