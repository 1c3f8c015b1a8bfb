#include "transport/pools.hpp"

#include "base/touch.hpp"

namespace railyard::transport {
namespace {

constexpr std::size_t kFramesPerBlock = 64;
constexpr std::size_t kMostFrames =
    65536;  // unacknowledged or waiting, all peers together; one flow: kMostFramesOfFlow of submit.cc
constexpr std::size_t kMostOtherBuffers = 8192;  // of the same size: what takes a failed chunk's place, native atomics
constexpr std::size_t kOperationsPerBlock = 64;
constexpr std::size_t kMostOperations = 131072;
constexpr std::size_t kSegmentsPerBlock = 64;
constexpr std::size_t kMostSegments = 262144;
/// Of a frame with a small message.
constexpr std::size_t kWarmBytes = 192;

}  // namespace

Pools::Pools()
    : frames_(kFramesPerBlock, kMostFrames),
      operations_(kOperationsPerBlock, kMostOperations),
      segments_(kSegmentsPerBlock, kMostSegments) {}

Result<void> Pools::open(std::span<fabric::Rail* const> rails) {
  auto buffers = memory::Slab::open(rails, wire::kFrameBytes, kFramesPerBlock, kMostFrames + kMostOtherBuffers);
  if (!buffers) return std::move(buffers.error());
  buffers_.emplace(std::move(*buffers));
  if (!frames_.grow() || !operations_.grow() || !segments_.grow()) return Error(Status::no_memory, "operation pools");
  return {};
}

/// On the frame's first use: it keeps the buffer. False: there is no more memory, and the frame goes back.
bool Pools::give_buffer(Operation& frame) {
  memory::Buffer* const buffer = buffers_->take();
  if (buffer == nullptr) {
    frames_.give(&frame);
    return false;
  }
  frame.become_frame(buffer);
  return true;
}

void Pools::warm_up() const {
  const Operation* const frame = frames_.next();
  if (frame == nullptr || frame->frame == nullptr) return;
  touch(*frame);
  touch(*frame->frame);
  touch(frame->frame->data, kWarmBytes);
}

}  // namespace railyard::transport
