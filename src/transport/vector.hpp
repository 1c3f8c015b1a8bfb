/// A vector: many blocks between local memory and a peer's, with one completion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/region.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

/// One block. Without a region its bytes are copied into a frame, beside others.
struct Block {
  std::byte* local = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t remote_offset = 0;
  bool in_frame = false;
  std::shared_ptr<memory::Region> region = {};
};

/// What a vector put takes of a flow's queue.
class VectorShape {
 public:
  /// Most operations that one submission may queue: a quarter of what a flow may have queued.
  static constexpr std::uint32_t kMost = 256;

  void add(const Block& block) {
    if (block.in_frame) {
      add_record(block.bytes);
    } else {
      ++writes_;
      used_ = wire::kFrameBytes;
    }
  }
  /// A signal that follows writes begins a frame: where a write fails, that record is taken back.
  void add_signal() {
    if (writes_ != 0) used_ = wire::kFrameBytes;
    add_record(sizeof(std::uint64_t));
  }
  std::uint32_t frames() const { return frames_; }
  std::uint32_t writes() const { return writes_; }
  std::uint32_t operations() const { return frames_ + writes_; }

 private:
  void add_record(std::size_t body) {
    const std::size_t bytes = wire::record_bytes(body);
    if (used_ + bytes > wire::kFrameBytes) {
      ++frames_;
      used_ = wire::kRecordsAt;
    }
    used_ += bytes;
  }
  std::uint32_t frames_ = 0;
  std::uint32_t writes_ = 0;
  std::size_t used_ = wire::kFrameBytes;  ///< of the last frame; none is open at first
};

}  // namespace railyard::transport
