#include "gin.hpp"

#include <fmt/format.h>

#include <utility>

#include "memory/location.hpp"
#include "window/assemble.hpp"

namespace railyard::nccl {

Result<std::unique_ptr<GroupComm>> GroupComm::open(Hold hold, message::HandleListener listener, const Handle& first,
                                                   int rank, int size) {
  const Settings& settings = hold.context().settings();
  const std::int64_t timeout_ns = std::int64_t{settings.bootstrap_timeout_ms} * 1'000'000;
  auto ranks = message::HandleWorld::open(first, std::move(listener), rank, size, timeout_ns);
  if (!ranks) return std::move(ranks.error());
  std::unique_ptr<GroupComm> group(new GroupComm(std::move(hold)));
  group->ranks_ = std::move(*ranks);
  auto world = open_world(group->hold_.context(), *group->ranks_.bootstrap);
  if (!world) return std::move(world.error());
  group->world_.emplace(std::move(*world));
  auto anchor = Window::adopt(*group->world_, group->anchor_memory_, {.signals = 0, .counters = 0});
  if (!anchor) return std::move(anchor.error());
  group->anchor_.emplace(std::move(*anchor));
  group->requests_.open(static_cast<std::size_t>(size), kRequestsPerRank * static_cast<std::size_t>(size));
  return group;
}

GroupComm::~GroupComm() {
  // Windows before their world, the world before what its ranks met by.
  memories_.clear();
  anchor_.reset();
  world_.reset();
}

// ---- Memory ----

Result<GroupMemory*> GroupComm::register_memory(std::span<std::byte> memory, bool on_device) {
  const std::lock_guard collective(collective_mutex_);
  // The processor would copy to an address that is none of its own.
  const bool unknown = on_device && !memory::find_device(memory.data());
  // All ranks wait for each other here. One that cannot take part says so: no memory.
  auto window = Window::adopt(*world_, unknown ? std::span<std::byte>() : memory,
                              {.signals = 0, .counters = 0, .per_rank = true});
  if (unknown)
    return Error(Status::unsupported,
                 fmt::format("{} bytes at {} are said to be memory of a GPU, and no GPU of this process has them: "
                             "is RAILYARD_GPU=off set, or the CUDA driver missing?",
                             memory.size(), static_cast<const void*>(memory.data())));
  if (!window) return std::move(window.error());
  // Ahead of the first put from it. What cannot be remembered is registered when it is used, or fails there.
  static_cast<void>(world_->remember(memory));
  auto made = std::make_unique<GroupMemory>(*this, memory, std::move(*window));
  GroupMemory* const name = made.get();
  const std::lock_guard lock(memories_mutex_);
  memories_.emplace(name, std::move(made));
  return name;
}

Result<void> GroupComm::deregister_memory(GroupMemory& memory) {
  std::unique_ptr<GroupMemory> ended;  // outside the lock: it may wait for what is under way
  const std::lock_guard lock(memories_mutex_);
  const auto found = memories_.find(&memory);
  if (found == memories_.end()) return Error(Status::invalid, "this memory is not registered with this group");
  ended = std::move(found->second);
  memories_.erase(found);
  return {};
}

void GroupComm::add_contexts(std::size_t count) {
  const std::lock_guard lock(requests_mutex_);
  requests_.allow_more(count * kRequestsPerRank * static_cast<std::size_t>(world_->size()));
}

// ---- Operations ----

Error GroupComm::fail(Error error) {
  const std::lock_guard lock(requests_mutex_);
  if (!failed_.load(std::memory_order_relaxed)) {
    error_ = error.copy();
    failed_.store(true, std::memory_order_release);
  }
  return error;
}

Result<GroupRequest*> GroupComm::take_request(int rank) {
  // NCCL 2.28 does not look at what `test` answers: a failure reaches the user by the next operation.
  if (failed()) return error_.copy();
  const std::lock_guard lock(requests_mutex_);
  GroupRequest* const request = requests_.take(*this, rank);
  if (request == nullptr)
    return Error(Status::no_memory,
                 fmt::format("{} requests are under way: as many as maxRecvs and the number of contexts allow",
                             requests_.most()));
  return request;
}

Result<GroupRequest*> GroupComm::put(int rank, MemoryRange from, std::size_t bytes, MemoryRange to,
                                     const WordAdd* signal) {
  auto request = take_request(rank);
  if (!request) return request;
  const auto give_up = [&](Error error) -> Result<GroupRequest*> {
    {
      const std::lock_guard lock(requests_mutex_);
      requests_.give_back(**request);
    }
    return fail(std::move(error));
  };
  if (bytes != 0) {
    auto ticket = to.memory->window().put(rank, to.offset, from.memory->memory().data() + from.offset, bytes);
    if (!ticket) return give_up(std::move(ticket.error()));
    (*request)->tickets[0] = *ticket;
  }
  if (signal != nullptr) {
    auto ticket =
        signal->at.memory->window().atomic<std::uint64_t>(rank, signal->at.offset, AtomicOp::add, signal->value);
    if (!ticket) return give_up(std::move(ticket.error()));
    (*request)->tickets[1] = *ticket;
  }
  return request;
}

Result<GroupRequest*> GroupComm::get(int rank, MemoryRange from, std::size_t bytes, MemoryRange to) {
  auto request = take_request(rank);
  if (!request || bytes == 0) return request;
  auto ticket = from.memory->window().get(rank, from.offset, to.memory->memory().data() + to.offset, bytes);
  if (ticket) {
    (*request)->tickets[0] = *ticket;
    return request;
  }
  {
    const std::lock_guard lock(requests_mutex_);
    requests_.give_back(**request);
  }
  return fail(std::move(ticket.error()));
}

Result<GroupRequest*> GroupComm::flush(int rank) {
  auto request = take_request(rank);
  if (request) (*request)->flush = true;
  return request;
}

/// Whether it is complete, without giving it back.
Result<bool> GroupComm::look(GroupRequest& request) {
  if (request.error.status() != Status::ok) return request.error.copy();
  if (request.complete) return true;
  bool complete = true;
  for (const Ticket& ticket : request.tickets) {
    // Both to the end: what the first failed with must not hide that the second goes on.
    auto seen = anchor_->test(ticket);
    if (!seen && request.error.status() == Status::ok) request.error = std::move(seen.error());
    complete = complete && (!seen || *seen);
  }
  if (request.error.status() != Status::ok) return fail(request.error.copy());
  request.complete = complete;
  return complete;
}

Result<bool> GroupComm::test(GroupRequest& request) {
  bool complete = true;
  if (request.flush) {
    for (GroupRequest* before = request.older; before != nullptr; before = before->older) {
      if (before->flush) continue;  // those before it are before this one, too
      auto seen = look(*before);
      if (!seen) return seen;  // what it covers is not there, and will not be
      complete = complete && *seen;
    }
  } else {
    auto seen = look(request);
    if (!seen) return seen;
    complete = *seen;
  }
  if (!complete) return false;
  const std::lock_guard lock(requests_mutex_);
  requests_.give_back(request);
  return true;
}

}  // namespace railyard::nccl
