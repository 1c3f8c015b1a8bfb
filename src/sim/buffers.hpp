/// A rank's own memory, from which it puts and into which it gets. Given back, a buffer is spoilt at once: whoever
/// still reads from it sends rubbish, and is found out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "sim/layout.hpp"

namespace railyard::sim {

class Buffers {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t kGap = 64;  ///< around each buffer; nobody may touch it
  static constexpr std::byte kSpoilt{0xdb};
  static constexpr std::byte kGapByte{0x3c};

  explicit Buffers(bool large) {
    add(32, Layout::kSmallBytes);
    add(8, Layout::kMediumBytes);
    if (large) add(2, Layout::kLargeBytes);
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes_ + kGap);
    std::memset(memory_.get(), static_cast<int>(kGapByte), kGap);
    for (const Buffer& buffer : buffers_) {
      std::memset(memory_.get() + buffer.offset + buffer.bytes, static_cast<int>(kGapByte), kGap);
    }
  }

  /// The smallest free one that holds `bytes`, or kNone.
  std::uint32_t take(std::size_t bytes) {
    for (std::size_t i = 0; i < classes_; ++i) {
      auto& free = free_[i];
      if (free.empty() || buffers_[free.back()].bytes < bytes) continue;
      const std::uint32_t index = free.back();
      free.pop_back();
      return index;
    }
    return kNone;
  }
  std::span<std::byte> memory(std::uint32_t index) const {
    return {memory_.get() + buffers_[index].offset, buffers_[index].bytes};
  }
  void give(std::uint32_t index, std::size_t used) {
    std::memset(memory(index).data(), static_cast<int>(kSpoilt), used);
    free_[buffers_[index].kind].push_back(index);
  }
  /// Whether nothing was written right before or behind it.
  bool intact_around(std::uint32_t index) const {
    const std::byte* begin = memory_.get() + buffers_[index].offset;
    const std::byte* end = begin + buffers_[index].bytes;
    for (std::size_t i = 1; i <= kGap; ++i) {
      if (*(begin - i) != kGapByte || *(end + i - 1) != kGapByte) return false;
    }
    return true;
  }

 private:
  struct Buffer {
    std::size_t offset;
    std::size_t bytes;
    std::size_t kind;
  };
  void add(std::size_t count, std::size_t bytes) {
    for (std::size_t i = 0; i < count; ++i) {
      free_[classes_].push_back(static_cast<std::uint32_t>(buffers_.size()));
      buffers_.push_back({bytes_ + kGap, bytes, classes_});
      bytes_ += bytes + kGap;
    }
    ++classes_;
  }

  std::vector<Buffer> buffers_;
  std::array<std::vector<std::uint32_t>, 3> free_;
  std::size_t classes_ = 0;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace railyard::sim
