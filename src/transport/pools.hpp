/// Pools: the structures of what is under way: frames with their buffers, other operations, segments. One slow peer
/// cannot take them all: each flow is bounded too.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "fabric/rail.hpp"
#include "memory/slab.hpp"
#include "transport/flow.hpp"
#include "transport/operation.hpp"
#include "transport/pool.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

class Pools {
 public:
  Pools();
  /// The first operations find their structures in place.
  Result<void> open(std::span<fabric::Rail* const> rails);

  // ---- Null: there is none now ----

  /// A frame of the flow's with nothing in it.
  Operation* take_frame(Flow& flow) {
    Operation* const frame = frames_.take();
    if (frame == nullptr || (frame->frame == nullptr && !give_buffer(*frame))) [[unlikely]]
      return nullptr;
    frame->flow = &flow;
    frame->frame->bytes = wire::kRecordsAt;
    ++flow.sender.frames;
    return frame;
  }
  /// An operation of another kind.
  Operation* take_operation(Flow& flow, Operation::Kind kind) {
    Operation* const operation = operations_.take();
    if (operation == nullptr) return nullptr;
    operation->flow = &flow;
    operation->kind = kind;
    return operation;
  }
  /// A chunk of the operation, or what goes in its place.
  Segment* take_segment(Operation& operation) {
    Segment* const segment = segments_.take();
    if (segment == nullptr) return nullptr;
    segment->tag = static_cast<std::uint8_t>(Tag::segment);
    segment->operation = &operation;
    return segment;
  }
  /// A buffer of a frame's size, for what is none.
  memory::Buffer* take_buffer() { return buffers_->take(); }

  // ---- Nothing of it is under way ----

  void give_frame(Operation* frame) {
    --frame->flow->sender.frames;
    frames_.give(frame);
  }
  /// Of any kind.
  void give_operation(Operation* operation) {
    if (operation->kind == Operation::Kind::frame) return give_frame(operation);
    if (operation->frame != nullptr) buffers_->give(operation->frame);
    operations_.give(operation);
  }
  /// Not a frame's own.
  void give_segment(Segment* segment) {
    if (segment->void_frame != nullptr) buffers_->give(segment->void_frame);
    segments_.give(segment);
  }
  void give_buffer(memory::Buffer* buffer) { buffers_->give(buffer); }

  /// Every segment there is, in use or not; those of frames too.
  template <typename Visit>
  void for_each_segment_and_frame(Visit&& visit) {
    segments_.for_each(visit);
    frames_.for_each([&](Operation& frame) { visit(frame.own); });
  }
  /// Of those that are no frames, every one there is, in use or not.
  template <typename Visit>
  void for_each_operation(Visit&& visit) {
    operations_.for_each(visit);
  }
  template <typename Visit>
  void for_each_segment(Visit&& visit) {
    segments_.for_each(visit);
  }
  /// Touches the frame that would be used next (base/touch.hpp): it is likely to be the one that was used last.
  void warm_up() const;

 private:
  bool give_buffer(Operation& frame);

  Pool<Operation> frames_;
  Pool<Operation> operations_;
  Pool<Segment> segments_;
  std::optional<memory::Slab> buffers_;
};

}  // namespace railyard::transport
