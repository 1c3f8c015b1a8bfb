/// Submission of vectors: all of it or nothing, under one number or in one slot. Nothing leaves before all is queued,
/// so small blocks fill frames.
#include "transport/vector.hpp"

#include <cstring>

#include "transport/engine.hpp"

namespace railyard::transport {
namespace {

static_assert(4 * VectorShape::kMost <= FlowSender::kMostQueued);

std::uint64_t bytes_of(std::span<const Block> blocks) {
  std::uint64_t sum = 0;
  for (const Block& block : blocks) sum += block.bytes;
  return sum;
}

}  // namespace

/// Operations for a vector, the first `frames` of them with a buffer. Empty: there are not so many now.
std::vector<Operation*> Engine::take_operations(Flow& flow, std::uint32_t count, std::uint32_t frames) {
  std::vector<Operation*> taken;
  bool enough =
      flow.sender.queued() + count <= FlowSender::kMostQueued && flow.sender.frames + frames <= FlowSender::kMostQueued;
  while (enough && taken.size() < count) {
    Operation* const operation = operations_.take();
    if (operation != nullptr) taken.push_back(operation);
    enough = operation != nullptr;
    if (!enough || taken.size() > frames) continue;
    operation->frame = frames_->take();
    enough = operation->frame != nullptr;
    if (enough) operation->frame->bytes = wire::kRecordsAt;
  }
  if (enough) return taken;
  for (Operation* operation : taken) {
    if (operation->frame != nullptr) frames_->give(operation->frame);
    operations_.give(operation);
  }
  note_backpressure();
  return {};
}

void Engine::queue_taken(Flow& flow, Operation& operation, Operation::Kind kind) {
  operation.flow = &flow;
  operation.kind = kind;
  if (kind == Operation::Kind::frame) ++flow.sender.frames;
  flow.sender.enqueue(&operation);
}

void Engine::set_block(Operation& operation, const VectorWork& work, const Block& block) {
  operation.local = block.local;
  operation.bytes = block.bytes;
  operation.remote_offset = block.remote_offset;
  operation.remote = work.remote;
  operation.region = block.region;
  operation.keep = work.keep;
}

bool Engine::try_vector(Flow& flow, const VectorWork& work, const SignalRecord* signal, std::uint64_t& number) {
  VectorShape shape;
  for (const Block& block : work.blocks) shape.add(block);
  if (signal != nullptr) shape.add_signal();
  const std::vector<Operation*> taken = take_operations(flow, shape.operations(), shape.frames());
  if (taken.empty()) return false;

  auto next_frame = taken.begin();
  auto next_write = taken.begin() + shape.frames();
  const auto open_vector_frame = [&](Operation* open, std::size_t body) {
    if (open != nullptr && open->frame->bytes + wire::record_bytes(body) <= wire::kFrameBytes) return open;
    Operation* const fresh = *next_frame++;
    queue_taken(flow, *fresh, Operation::Kind::frame);
    return fresh;
  };
  // The whole vector has one number. Whatever of it fails does so under that; it is complete with the last of it.
  number = count_submission(flow, signal != nullptr ? What::put_signal : What::put, bytes_of(work.blocks));
  Operation* frame = nullptr;
  for (const Block& block : work.blocks) {
    if (!block.in_frame) {
      frame = nullptr;
      Operation& write = **next_write++;
      queue_taken(flow, write, Operation::Kind::write);
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
  if (shape.writes() != 0) waiting_.nudge();
  push(flow);
  return true;
}

bool Engine::try_reads(Flow& flow, const VectorWork& work, Ticket& ticket) {
  if (slots_.empty()) {
    note_backpressure();
    return false;
  }
  const auto count = static_cast<std::uint32_t>(work.blocks.size());
  const std::vector<Operation*> taken = take_operations(flow, count, 0);
  if (taken.empty()) return false;
  const std::uint32_t slot = slots_.take({&flow, nullptr, 0, false, false, flow.peer, count});
  count_slot(flow, slot, What::get, bytes_of(work.blocks));
  for (std::uint32_t i = 0; i < count; ++i) {
    queue_taken(flow, *taken[i], Operation::Kind::read);
    set_block(*taken[i], work, work.blocks[i]);
    taken[i]->slot = slot + 1;
  }
  ticket = {slots_.number(slot), flow.peer, slot + 1};
  count_outstanding(flow, 1);
  waiting_.nudge();
  push(flow);
  return true;
}

}  // namespace railyard::transport
