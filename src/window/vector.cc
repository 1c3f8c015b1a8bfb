/// Vectors: many blocks, checked all at once, then copied where this process can touch the memory, else handed to the
/// engine as one operation.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "window/blocks.hpp"
#include "window/direct.hpp"
#include "window/submit.hpp"

namespace railyard {
namespace window_detail {
namespace {

using transport::VectorShape;

/// Whether `count` blocks, a stride apart, end at or before `room`.
bool strides_fit(const Strides& strides, std::size_t stride, std::size_t first, std::size_t room) {
  std::size_t end = 0;
  return !__builtin_mul_overflow(strides.count - 1, stride, &end) && !__builtin_add_overflow(end, first, &end) &&
         !__builtin_add_overflow(end, strides.bytes, &end) && end <= room;
}

}  // namespace

Result<void> WindowState::check_blocks(const char* call, int rank, const Blocks& blocks,
                                       const SignalUpdate* signal) const {
  if (auto checked = check_rank(call, rank); !checked) return checked;
  if (signal != nullptr) {
    if (auto checked = check_put({.call = call, .rank = rank, .signal = signal}); !checked) return checked;
  }
  if (blocks.size() == 0) return {};
  const std::size_t room = part(rank).bytes;
  if (!blocks.is_strided()) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockAt at = blocks[i];
      if (at.offset <= room && at.bytes <= room - at.offset && (at.local != nullptr || at.bytes == 0)) continue;
      auto checked = check_range(call, rank, at.offset, at.local, at.bytes);
      return Error(checked.status(), fmt::format("{} (block {} of {})", checked.error().message(), i, blocks.size()),
                   checked.error().where());
    }
    return {};
  }
  const Strides& strides = blocks.strides();
  const auto first = reinterpret_cast<std::uintptr_t>(blocks.first().local);
  if (blocks.first().local == nullptr || !strides_fit(strides, strides.local, first, UINTPTR_MAX)) {
    return Error(Status::invalid,
                 fmt::format("{}: {} blocks, {} bytes apart, from or to {}: there is no such memory", call,
                             strides.count, strides.local, static_cast<const void*>(blocks.first().local)),
                 {.peer = rank, .operation = call});
  }
  if (strides_fit(strides, strides.remote, blocks.first().offset, room)) return {};
  return Error(Status::out_of_range,
               fmt::format("{}: {} blocks of {} bytes from offset {} on, {} bytes apart, do not fit in the {} bytes of "
                           "rank {}'s window",
                           call, strides.count, strides.bytes, blocks.first().offset, strides.remote, room, rank),
               {.peer = rank, .operation = call});
}

bool WindowState::any_on_device(int rank, const Blocks& blocks) const {
  if (!gpus_ || part(rank).on_device) return gpus_;
  if (blocks.is_strided()) return blocks.size() != 0 && is_on_device(blocks.first().local);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (const BlockAt at = blocks[i]; at.bytes != 0 && is_on_device(at.local)) return true;
  }
  return false;
}

/// On memory that this process can touch. Returns how many bytes it were.
std::size_t WindowState::copy_blocks(const DirectPart& part, const Blocks& blocks, bool put) {
  std::size_t bytes = 0;
  BlockAt at;
  for (JoinedBlocks rest(blocks); rest.next(at); bytes += at.bytes) {
    std::byte* const there = part.data.memory.data() + at.offset;
    if (!part.heap) {
      std::memmove(put ? there : at.local, put ? at.local : there, at.bytes);
    } else if (put) {
      part.distance.copy(there, at.local, at.bytes);
    } else {
      shm::copy_bytes(at.local, there, at.bytes);
    }
  }
  return bytes;
}

Result<void> WindowState::copy_blocks_at_home(const char* call, const Blocks& blocks, bool put) {
  BlockAt at;
  for (JoinedBlocks rest(blocks); rest.next(at);) {
    std::byte* const there = memory().data() + at.offset;
    auto copied = copy_at_home(call, put ? there : at.local, put ? at.local : there, at.bytes);
    if (!copied) return copied;
  }
  return {};
}

/// Finds the regions of those blocks that need one. Progress lock held.
Result<void> WindowState::register_blocks(const char* call, const transport::Flow& flow, const Blocks& blocks,
                                          const transport::RemoteMemory& remote, std::span<transport::Block> batch) {
  const std::span<std::byte> mine = memory();
  std::shared_ptr<memory::Region> whole;
  for (transport::Block& block : batch) {
    if (block.in_frame || block.region != nullptr) continue;
    if (block.local >= mine.data() && block.local + block.bytes <= mine.data() + mine.size()) {
      block.region = region_;
    } else if (whole != nullptr) {
      block.region = whole;
    } else {
      // What lies between blocks at equal distances belongs to them: one registration, not one for each.
      std::span<std::byte> needed(block.local, block.bytes);
      if (blocks.is_strided())
        needed = {blocks.first().local, Blocks::extent(blocks.strides(), blocks.strides().local)};
      auto found = engine_.cache().find(needed);
      if (!found) return std::move(found.error());
      block.region = std::move(*found);
      if (blocks.is_strided()) whole = block.region;
    }
    if (!gpus_) continue;
    transport::Bulk work;
    work.remote = remote;
    work.region = block.region;
    const int rank = world_.rank_of(flow.peer);
    if (auto reached = check_reach(call, rank, flow, work); !reached) return reached;
  }
  return {};
}

/// Hands blocks to the engine, as many at a time as one submission takes. `attempt(flow, work, last, ticket)`.
template <typename Attempt>
Result<Ticket> WindowState::submit_blocks(const char* call, int rank, const Blocks& blocks, bool device, bool put,
                                          Attempt&& attempt) {
  std::vector<transport::Block> batch;
  std::vector<Ticket> earlier;
  Ticket ticket;
  bool all_in_frames = put;
  JoinedBlocks rest(blocks);
  BlockAt at;
  for (bool more = rest.next(at); more;) {
    batch.clear();
    for (VectorShape shape; more; more = rest.next(at)) {
      transport::Block block{at.local, at.bytes, at.offset, put && !device && at.bytes <= engine_.inline_bytes()};
      shape.add(block);
      if (shape.operations() >= VectorShape::kMost) break;  // one is left for a signal
      all_in_frames &= block.in_frame;
      batch.push_back(std::move(block));
    }
    if (!more) {
      // The ticket is the last part's. What became of the others is known before that leaves.
      for (const Ticket& each : earlier) {
        if (auto waited = wait(call, each, Completion::remote, {}); !waited) return std::move(waited.error());
      }
    }
    Error unusable;
    transport::VectorWork work{remote(rank), batch, storage_};
    auto submitted = submit(call, rank, [&](transport::Flow& flow) {
      if (auto ready = register_blocks(call, flow, blocks, work.remote, batch); !ready) {
        unusable = std::move(ready.error());
        return true;
      }
      const bool done = attempt(flow, work, !more, ticket);
      // References to regions come and go with the progress lock held: the last one deregisters on the rails. Without
      // room they are kept for the next attempt.
      if (done)
        for (transport::Block& block : batch) block.region.reset();
      return done;
    });
    if (unusable.status() != Status::ok) {
      const transport::ProgressGuard hold(engine_.progress_lock());
      batch.clear();
      return unusable;
    }
    if (!submitted) {
      {
        const transport::ProgressGuard hold(engine_.progress_lock());
        batch.clear();
      }
      if (submitted.status() != Status::busy || earlier.empty()) return std::move(submitted.error());
      return timed_out(call, rank, 0);  // a part has been handed over: "nothing happened" would not be true
    }
    ticket.peer = rank;
    earlier.push_back(ticket);
  }
  if (all_in_frames) ticket.slot = kSourceFree;
  return ticket;
}

Result<Ticket> WindowState::put_blocks(const char* call, int rank, const Blocks& blocks, const SignalUpdate* signal) {
  if (auto checked = check_blocks(call, rank, blocks, signal); !checked) return std::move(checked.error());
  const PeerPart& peer = part(rank);
  const Put last{.call = call, .rank = rank, .signal = signal};
  BlockAt first;
  if (!JoinedBlocks(blocks).next(first)) return signal != nullptr ? put(last) : Result<Ticket>(Ticket{});
  const bool device = any_on_device(rank, blocks);
  if (is_self(rank) && (device || signals_at_home(last))) {
    if (auto copied = copy_blocks_at_home(call, blocks, true); !copied) return std::move(copied.error());
    return signal != nullptr ? put(last) : Result<Ticket>(Ticket{});
  }
  if (!device && peer.direct != nullptr && takes(*peer.direct, last) && may_touch(rank)) {
    const std::int64_t began = trace_clock();
    const std::size_t bytes = copy_blocks(*peer.direct, blocks, true);
    if (signal != nullptr) {
      apply_signal(peer.direct->data, signal->index, signal->op, signal->value);
      if (peer.direct->sleepers->any()) wake(rank);
    }
    if (peer.direct->heap) used_directly(DirectUse::What::put, bytes);
    using What = transport::EngineTrace::What;
    if (traced_) note_direct(rank, signal != nullptr ? What::put_signal : What::put, bytes, began);
    return Ticket{};
  }
  transport::SignalRecord record;
  if (signal != nullptr) record = {peer.exposed_region, signal->index, signal->op, signal->value};
  return submit_blocks(call, rank, blocks, device, true,
                       [&](transport::Flow& flow, const transport::VectorWork& work, bool at_the_end, Ticket& ticket) {
                         ticket = {};
                         return engine_.submissions().try_vector(
                             flow, work, at_the_end && signal != nullptr ? &record : nullptr, ticket.number);
                       });
}

Result<Ticket> WindowState::get_blocks(const char* call, int rank, const Blocks& blocks) {
  if (auto checked = check_blocks(call, rank, blocks, nullptr); !checked) return std::move(checked.error());
  const bool device = any_on_device(rank, blocks);
  if (device && is_self(rank)) {
    if (auto copied = copy_blocks_at_home(call, blocks, false); !copied) return std::move(copied.error());
    return Ticket{};
  }
  const DirectPart* const direct = part(rank).direct;
  if (!device && direct != nullptr && may_touch(rank)) {
    const std::int64_t began = trace_clock();
    const std::size_t bytes = copy_blocks(*direct, blocks, false);
    if (direct->heap) used_directly(DirectUse::What::get, bytes);
    if (traced_) note_direct(rank, transport::EngineTrace::What::get, bytes, began);
    return Ticket{};
  }
  return submit_blocks(call, rank, blocks, device, false,
                       [&](transport::Flow& flow, const transport::VectorWork& work, bool /*last*/, Ticket& ticket) {
                         return engine_.submissions().try_reads(flow, work, ticket);
                       });
}

}  // namespace window_detail

using window_detail::Blocks;

Result<Ticket> Window::put_vector(int rank, std::span<const PutBlock> blocks) {
  return state_->put_blocks("put_vector", rank, Blocks(blocks), nullptr);
}

Result<Ticket> Window::put_vector_signal(int rank, std::span<const PutBlock> blocks, SignalUpdate signal) {
  return state_->put_blocks("put_vector_signal", rank, Blocks(blocks), &signal);
}

Result<Ticket> Window::get_vector(int rank, std::span<const GetBlock> blocks) {
  return state_->get_blocks("get_vector", rank, Blocks(blocks));
}

Result<Ticket> Window::put_strided(int rank, std::size_t offset, const void* source, const Strides& blocks) {
  return state_->put_blocks("put_strided", rank, Blocks(source, offset, blocks), nullptr);
}

Result<Ticket> Window::put_strided_signal(int rank, std::size_t offset, const void* source, const Strides& blocks,
                                          SignalUpdate signal) {
  return state_->put_blocks("put_strided_signal", rank, Blocks(source, offset, blocks), &signal);
}

Result<Ticket> Window::get_strided(int rank, std::size_t offset, void* destination, const Strides& blocks) {
  return state_->get_blocks("get_strided", rank, Blocks(destination, offset, blocks));
}

}  // namespace railyard
