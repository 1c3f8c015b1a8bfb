/// Submission of vectors: all of it or nothing, under one number or in one slot. Nothing leaves before all is queued,
/// so small blocks fill frames.
#include "transport/vector.hpp"

#include <cstring>

#include "transport/append.hpp"
#include "transport/submissions.hpp"

namespace railyard::transport {
namespace {

static_assert(4 * VectorShape::kMost <= FlowSender::kMostQueued);

std::uint64_t bytes_of(std::span<const Block> blocks) {
  std::uint64_t sum = 0;
  for (const Block& block : blocks) sum += block.bytes;
  return sum;
}

void set_block(Operation& operation, const VectorWork& work, const Block& block) {
  operation.local = block.local;
  operation.bytes = block.bytes;
  operation.remote_offset = block.remote_offset;
  operation.remote = work.remote;
  operation.region = block.region;
  operation.keep = work.keep;
}

}  // namespace

/// Operations for a vector: so many frames, then so many of the kind. Empty: there are not so many now.
std::vector<Operation*> Submissions::take_operations(Flow& flow, std::uint32_t frames, Operation::Kind kind,
                                                     std::uint32_t others) {
  const std::uint32_t count = frames + others;
  std::vector<Operation*> taken;
  bool enough =
      flow.sender.queued() + count <= FlowSender::kMostQueued && flow.sender.frames + frames <= FlowSender::kMostQueued;
  while (enough && taken.size() < count) {
    Operation* const operation =
        taken.size() < frames ? core_.pools.take_frame(flow) : core_.pools.take_operation(flow, kind);
    enough = operation != nullptr;
    if (enough) taken.push_back(operation);
  }
  if (enough) return taken;
  for (Operation* operation : taken) core_.pools.give_operation(operation);
  note_backpressure();
  return {};
}

bool Submissions::try_vector(Flow& flow, const VectorWork& work, const SignalRecord* signal, std::uint64_t& number) {
  VectorShape shape;
  for (const Block& block : work.blocks) shape.add(block);
  if (signal != nullptr) shape.add_signal();
  const std::vector<Operation*> taken = take_operations(flow, shape.frames(), Operation::Kind::write, shape.writes());
  if (taken.empty()) return false;

  auto next_frame = taken.begin();
  auto next_write = taken.begin() + shape.frames();
  const auto open_vector_frame = [&](Operation* open, std::size_t body) {
    if (open != nullptr && open->frame->bytes + wire::record_bytes(body) <= wire::kFrameBytes) return open;
    Operation* const fresh = *next_frame++;
    flow.sender.enqueue(fresh);
    return fresh;
  };
  // The whole vector has one number. Whatever of it fails does so under that; it is complete with the last of it.
  number = completions_.submitted(flow, signal != nullptr ? What::put_signal : What::put, bytes_of(work.blocks));
  Operation* frame = nullptr;
  for (const Block& block : work.blocks) {
    if (!block.in_frame) {
      frame = nullptr;
      Operation& write = **next_write++;
      flow.sender.enqueue(&write);
      set_block(write, work, block);
      write.submission = number;
      continue;
    }
    frame = open_vector_frame(frame, block.bytes);
    frame->submission = number;
    append_put(*frame, {work.remote.exposed_region, block.remote_offset, {block.local, block.bytes}},
               frame->records != 0);
  }
  if (signal != nullptr && shape.writes() != 0) {
    frame = open_vector_frame(nullptr, sizeof signal->value);
    append_signal(*frame, *signal, false);
    for (auto write = taken.begin() + shape.frames(); write != taken.end(); ++write) (*write)->companion = frame;
  } else if (signal != nullptr) {
    frame = open_vector_frame(frame, sizeof signal->value);
    frame->submission = number;
    append_signal(*frame, *signal, frame->records != 0);
  }
  flow.sender.last()->number = number;
  if (shape.writes() != 0) core_.waiting.nudge();
  transmitter_.push(flow);
  return true;
}

bool Submissions::try_reads(Flow& flow, const VectorWork& work, Ticket& ticket) {
  if (!completions_.has_slot()) {
    note_backpressure();
    return false;
  }
  const auto count = static_cast<std::uint32_t>(work.blocks.size());
  const std::vector<Operation*> taken = take_operations(flow, 0, Operation::Kind::read, count);
  if (taken.empty()) return false;
  ticket = completions_.submitted_in_slot(flow, {&flow, nullptr, 0, false, false, flow.peer, count}, What::get,
                                          bytes_of(work.blocks));
  for (std::uint32_t i = 0; i < count; ++i) {
    flow.sender.enqueue(taken[i]);
    set_block(*taken[i], work, work.blocks[i]);
    taken[i]->slot = ticket.slot;
  }
  core_.waiting.nudge();
  transmitter_.push(flow);
  return true;
}

}  // namespace railyard::transport
