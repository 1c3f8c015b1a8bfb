/// Puts, gets, signals and atomics: checked, then handed to the engine in the form that suits their size and target.
#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cstring>

#include "base/touch.hpp"
#include "transport/reach.hpp"
#include "window/submit.hpp"

namespace railyard::window_detail {

namespace {

/// A copy of a small source, for as long as it is under way.
struct SmallSource {
  SmallSource(std::shared_ptr<const void> of, std::size_t size) : storage(std::move(of)), bytes(size) {}
  std::shared_ptr<const void> storage;
  std::vector<std::byte> bytes;
};

}  // namespace

void WindowState::count(const CounterUpdate& counter) {
  if (storage_->device_counters) {
    const transport::ProgressGuard hold(engine_.progress_lock());
    storage_->device_counters->latest()[counter.index] += counter.value;
    engine_.exposed().words().write(*storage_->device_counters, counter.index, {});
    return engine_.waiting().nudge_later();
  }
  // Release: whoever sees the counter may reuse the source.
  std::atomic_ref<std::uint64_t>(counters_[counter.index]).fetch_add(counter.value, std::memory_order_release);
}

transport::Bulk WindowState::bulk(int rank, std::size_t offset, void* local, std::size_t bytes) {
  transport::Bulk bulk;
  bulk.local = static_cast<std::byte*>(local);
  bulk.bytes = bytes;
  bulk.remote_offset = offset;
  bulk.remote = remote(rank);
  bulk.keep = storage_;
  const std::span<std::byte> mine = memory();
  if (bulk.local >= mine.data() && bulk.local + bytes <= mine.data() + mine.size()) bulk.region = region_;
  return bulk;
}

/// Submits a transfer, its local memory registered first. References to regions come and go with the progress lock
/// held: the last one deregisters on the rails.
template <typename Attempt>
Result<void> WindowState::submit_bulk(const char* call, int rank, transport::Bulk work, Attempt&& attempt) {
  Error unusable;
  auto submitted = submit(call, rank, [&](transport::Flow& flow) {
    if (work.region == nullptr) {
      auto region = engine_.cache().find({work.local, work.bytes});
      if (!region) {
        unusable = std::move(region.error());
        return true;
      }
      work.region = std::move(*region);
    }
    if (auto reached = check_reach(call, rank, flow, work); !reached) {
      unusable = std::move(reached.error());
      return true;
    }
    if (!attempt(flow, work)) return false;
    work.region.reset();
    return true;
  });
  if (work.region != nullptr) {
    const transport::ProgressGuard hold(engine_.progress_lock());
    work.region.reset();
  }
  if (unusable.status() != Status::ok) return unusable;
  return submitted;
}

/// Memory of a GPU, here or there, and a way that does not reach it.
Result<void> WindowState::check_reach(const char* call, int rank, const transport::Flow& flow,
                                      const transport::Bulk& work) const {
  if (!gpus_ || flow.route->links.empty()) return {};
  for (const transport::Link& link : flow.route->links)
    if (transport::reaches(link, work.region.get(), work.remote)) return {};
  const auto rail = static_cast<std::size_t>(flow.route->links.front().rail());
  return Error(Status::unsupported,
               fmt::format("{}: the way to rank {} over {} does not reach the memory of GPUs: copy to host memory "
                           "first, or use a rail that does (shared memory, tcp, NICs that register dma-bufs)",
                           call, rank, engine_.rails()[rail]->name()),
               {.peer = rank, .rail = static_cast<int>(rail), .operation = call});
}

[[gnu::hot]] Result<void> WindowState::check_put(const Put& request) const {
  if (auto checked = check_range(request.call, request.rank, request.offset, request.source, request.bytes); !checked) {
    return checked;
  }
  if (request.counter != nullptr) {
    if (auto checked = check_counter(request.call, request.counter->index); !checked) return checked;
  }
  if (request.order > Order::relaxed) {
    return unknown(request.call, "order", static_cast<int>(request.order), "ordered (0) and relaxed (1)");
  }
  if (request.signal == nullptr) return {};
  if (request.signal->op > SignalOp::set) {
    return unknown(request.call, "signal operation", static_cast<int>(request.signal->op), "add (0) and set (1)");
  }
  if (request.exposed_region != 0) return {};
  return check_signal(request.call, request.rank, request.signal->index);
}

[[gnu::hot]] Result<Ticket> WindowState::put_by_engine(const Put& request) {
  // Everybody has slept: what this call runs through is in no cache.
  if (engine_.waiting().newly_attended(code_touched_)) [[unlikely]]
    touch_hot_code();
  if (auto checked = check_put(request); !checked) return std::move(checked.error());
  const PeerPart& peer = part(request.rank);
  transport::SignalRecord signal;
  if (request.signal != nullptr) {
    signal = {request.exposed_region != 0 ? request.exposed_region : peer.exposed_region, request.signal->index,
              request.signal->op, request.signal->value};
  }
  const transport::SignalRecord* with_signal = request.signal != nullptr ? &signal : nullptr;
  if (request.bytes == 0 && with_signal == nullptr) {
    if (request.counter != nullptr) count(*request.counter);
    return Ticket{};
  }

  const bool device = on_device(peer, request.source, request.bytes);
  if (is_self(request.rank) && (device || signals_at_home(request))) return put_at_home(request);

  Ticket ticket;
  ticket.peer = request.rank;
  const bool relaxed = request.order == Order::relaxed && may_relax_;
  const bool small = request.bytes <= engine_.inline_bytes();
  // Eight bytes of the host's are one store for the peer's GPU.
  const bool word = device && peer.on_device && request.bytes == sizeof(std::uint64_t) && !is_on_device(request.source);
  if (!relaxed && small && (!device || word || request.bytes == 0)) {
    const transport::PutRecord record{
        peer.exposed_region, request.offset, {static_cast<const std::byte*>(request.source), request.bytes}};
    auto submitted = submit(request.call, request.rank, [&](transport::Flow& flow) {
      return engine_.submissions().try_records(flow, request.bytes > 0 ? &record : nullptr, with_signal, ticket.number);
    });
    if (!submitted) return std::move(submitted.error());
    ticket.slot = kSourceFree;
    if (request.counter != nullptr) count(*request.counter);
    return ticket;
  }
  return put_bulk(request, with_signal, device);
}

/// A put that does not travel inside a frame.
[[gnu::noinline]] Result<Ticket> WindowState::put_bulk(const Put& request, const transport::SignalRecord* signal,
                                                       bool device) {
  Ticket ticket;
  const bool relaxed = request.order == Order::relaxed && may_relax_;
  // The engine only reads from a put's source.
  transport::Bulk work = bulk(request.rank, request.offset, const_cast<void*>(request.source), request.bytes);
  if (device && request.bytes <= engine_.inline_bytes() && !is_on_device(request.source)) {
    // A small source is free at once, here too.
    auto copied = std::make_shared<SmallSource>(storage_, request.bytes);
    std::memcpy(copied->bytes.data(), request.source, request.bytes);
    work.local = copied->bytes.data();
    work.region.reset();
    work.keep = std::move(copied);
    ticket.slot = kSourceFree;
  }
  if (request.counter != nullptr) {
    work.counter = storage_->device_counters ? &storage_->device_counters->latest()[request.counter->index]
                                             : &counters_[request.counter->index];
    work.counter_value = request.counter->value;
  }
  auto submitted = submit_bulk(
      request.call, request.rank, std::move(work), [&](transport::Flow& flow, const transport::Bulk& ready) {
        return relaxed
                   ? engine_.submissions().try_unordered(flow, ready, transport::Operation::Kind::relaxed_write, ticket)
                   : engine_.submissions().try_write(flow, ready, signal, ticket.number);
      });
  if (!submitted) return std::move(submitted.error());
  ticket.peer = request.rank;
  return ticket;
}

Result<Ticket> WindowState::get_by_engine(int rank, std::size_t offset, void* destination, std::size_t bytes) {
  if (auto checked = check_range("get", rank, offset, destination, bytes); !checked) return std::move(checked.error());
  if (bytes == 0) return Ticket{};
  if (is_self(rank)) {
    if (auto copied = copy_at_home("get", destination, memory().data() + offset, bytes); !copied)
      return std::move(copied.error());
    return Ticket{};
  }
  Ticket ticket;
  auto submitted = submit_bulk(
      "get", rank, bulk(rank, offset, destination, bytes), [&](transport::Flow& flow, const transport::Bulk& ready) {
        return engine_.submissions().try_unordered(flow, ready, transport::Operation::Kind::read, ticket);
      });
  if (!submitted) return std::move(submitted.error());
  ticket.peer = rank;
  return ticket;
}

Result<Ticket> WindowState::atomic(int rank, std::size_t offset, AtomicOp op, WordType type,
                                   transport::wire::AtomicBody body, void* before) {
  const char* call = before != nullptr ? "fetch_atomic" : "atomic";
  if (type > WordType::float64) {
    return unknown(call, "word type", static_cast<int>(type),
                   "int32 (0), uint32, int64, uint64, float32 and float64 (5)");
  }
  if (body.width != 4 && body.width != 8) {
    return Error(Status::invalid, fmt::format("{}: a word of {} bytes; 4 and 8 are possible", call, body.width),
                 {.peer = rank, .operation = call});
  }
  if (op > AtomicOp::max) {
    return unknown(call, "atomic operation", static_cast<int>(op),
                   "add (0), increment, bit_and, bit_or, bit_xor, set, swap, compare_swap, fetch, min and max (10)");
  }
  auto kind = transport::wire::WordKind::bits;
  if (type == WordType::float32 || type == WordType::float64) {
    if (op == AtomicOp::bit_and || op == AtomicOp::bit_or || op == AtomicOp::bit_xor) {
      return Error(Status::invalid, fmt::format("{}: a float or double has no bit_and, bit_or and bit_xor", call),
                   {.peer = rank, .operation = call});
    }
    if (op == AtomicOp::increment) {
      op = AtomicOp::add;
      body.operand = type == WordType::float32 ? std::bit_cast<std::uint32_t>(1.0F) : std::bit_cast<std::uint64_t>(1.0);
    }
    if (op == AtomicOp::add || op == AtomicOp::min || op == AtomicOp::max) kind = transport::wire::WordKind::floating;
  } else if ((op == AtomicOp::min || op == AtomicOp::max) && (type == WordType::int32 || type == WordType::int64)) {
    kind = transport::wire::WordKind::signed_integer;
  }
  // `this` stands for "not null": an atomic has no memory of the caller's to check.
  if (auto checked = check_range(call, rank, offset, this, body.width); !checked) return std::move(checked.error());
  if (offset % body.width != 0) {
    return Error(Status::invalid,
                 fmt::format("{}: offset {} is not a multiple of the word's {} bytes", call, offset, body.width),
                 {.peer = rank, .operation = call});
  }
  if (op == AtomicOp::fetch && before == nullptr) {
    return Error(Status::invalid, "atomic: a fetch needs a place for the value: use fetch_atomic",
                 {.peer = rank, .operation = call});
  }
  if (part(rank).on_device && native_atomics_) {
    return Error(Status::unsupported,
                 fmt::format("{}: rank {}'s window is memory of a GPU, which native_atomics do not reach: make the "
                             "window without them",
                             call, rank),
                 {.peer = rank, .operation = call});
  }
  if (before != nullptr && gpus_ && is_on_device(before)) {
    return Error(Status::invalid,
                 fmt::format("{}: the place for what the word held is memory of a GPU: give it host memory", call),
                 {.peer = rank, .operation = call});
  }
  if (native_atomics_) return atomic_natively(call, rank, offset, op, kind, body, before);
  if (on_device_ && is_self(rank)) {
    const std::uint8_t code = transport::wire::atomic_code(static_cast<std::uint8_t>(op), kind);
    return atomic_at_home(call, offset, code, body, before);
  }
  if (const DirectPart* direct = part(rank).direct; direct != nullptr && may_touch(rank)) {
    std::uint64_t value = 0;
    const std::uint8_t code = transport::wire::atomic_code(static_cast<std::uint8_t>(op), kind);
    const std::int64_t began = trace_clock();
    if (!atomic_directly(*direct, offset, code, body, value)) {
      return Error(Status::invalid, fmt::format("{}: the word at offset {} is not aligned in memory", call, offset),
                   {.peer = rank, .operation = call});
    }
    if (traced_) note_direct(rank, transport::EngineTrace::What::atomic, body.width, began);
    if (before != nullptr) std::memcpy(before, &value, body.width);
    return Ticket{};
  }
  Ticket ticket;
  const transport::AtomicRecord record{part(rank).exposed_region, offset, op, body, kind};
  auto submitted = submit(call, rank, [&](transport::Flow& flow) {
    return engine_.submissions().try_atomic(flow, record, before, ticket);
  });
  if (!submitted) return std::move(submitted.error());
  if (before == nullptr) ticket.slot = kSourceFree;
  ticket.peer = rank;
  return ticket;
}

Result<Ticket> WindowState::atomic_natively(const char* call, int rank, std::size_t offset, AtomicOp op,
                                            transport::wire::WordKind kind, const transport::wire::AtomicBody& body,
                                            void* before) {
  fabric::AtomicRequest request;
  request.value = body.operand;
  bool known = body.width == sizeof(std::uint64_t) && kind == transport::wire::WordKind::bits;
  switch (op) {
    case AtomicOp::add:
      break;
    case AtomicOp::increment:
      request.value = 1;
      break;
    case AtomicOp::fetch:
      request.value = 0;
      break;
    case AtomicOp::compare_swap:
      request.kind = fabric::AtomicRequest::Kind::compare_swap;
      request.compare = body.compare;
      break;
    default:
      known = false;
  }
  if (!known) {
    return Error(
        Status::unsupported,
        fmt::format("{}: a window with native_atomics has add, increment, compare_swap and fetch, of 8 bytes", call),
        {.peer = rank, .operation = call});
  }
  for (const transport::RemoteKey& key : remote(rank).keys) {
    if ((key.base + offset) % sizeof(std::uint64_t) == 0) continue;
    return Error(Status::invalid, fmt::format("{}: the word at offset {} is not aligned in memory", call, offset),
                 {.peer = rank, .operation = call});
  }
  Ticket ticket;
  const transport::Bulk at = bulk(rank, offset, nullptr, sizeof(std::uint64_t));
  auto submitted = submit(call, rank, [&](transport::Flow& flow) {
    return engine_.submissions().try_native(flow, at, request, before, ticket);
  });
  if (!submitted) return std::move(submitted.error());
  ticket.peer = rank;
  return ticket;
}

std::string WindowState::waits_for(const char* call, int rank) {
  return fmt::format("{} for rank {}: {}", call, rank, transport::describe_peer(engine_, flow_of(rank)));
}

Error WindowState::timed_out(const char* call, int rank, std::int64_t nanoseconds) {
  std::string state = "nothing was ever sent to it";
  std::uint64_t sequence = 0;
  if (const transport::Flow* flow = existing_flow(rank)) {
    const transport::ProgressGuard hold(engine_.progress_lock());
    sequence = flow->sender.acknowledged();
    state = fmt::format("{} operations outstanding, sequence {} of {} acknowledged, {} waiting to be sent",
                        flow->outstanding.load(std::memory_order_relaxed), flow->sender.acknowledged(),
                        flow->sender.next_sequence(), flow->sender.queued());
  }
  return {Status::timeout,
          fmt::format("{}: rank {} did not answer within {:.3f} s ({}); is it alive, and does it call progress?", call,
                      rank, static_cast<double>(nanoseconds) * 1e-9, state),
          {.peer = rank, .operation = call, .sequence = sequence}};
}

}  // namespace railyard::window_detail
