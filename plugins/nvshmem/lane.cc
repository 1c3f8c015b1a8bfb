#include "lane.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "window/assemble.hpp"

namespace railyard::nvshmem {
namespace {

constexpr std::size_t kMostDelivered = 64;  // looked at in one call of progress

}  // namespace

Lane::Lane(std::size_t number, World world)
    : number_(number),
      world_(std::move(world)),
      pes_(world_.size()),
      peers_(new Peer[static_cast<std::size_t>(pes_)]) {}

/// Windows before the world, and what answers are written to after it.
Lane::~Lane() {
  imported_.clear();
  own_.clear();
  const std::list<Fetch> unanswered = std::move(fetches_);
  [[maybe_unused]] const World ends_first = std::move(world_);
}

Result<std::unique_ptr<Lane>> Lane::open(std::size_t number, const Settings& settings, Bootstrap& bootstrap) {
  auto world = open_world(settings, bootstrap);
  if (!world) return std::move(world.error());
  return std::unique_ptr<Lane>(new Lane(number, std::move(*world)));
}

Result<std::vector<std::byte>> Lane::expose(std::uint32_t registration, std::span<std::byte> memory) {
  auto window = LoneWindow::open(world_, memory);
  if (!window) return std::move(window.error());
  auto description = LoneWindow::describe(*window);
  if (!description) return description;
  if (auto kept = keep(memory); !kept) return std::move(kept.error());
  const std::lock_guard lock(mutex_);
  own_.emplace(registration, std::move(*window));
  return description;
}

void Lane::end(std::uint32_t registration, std::span<std::byte> memory) {
  std::map<std::uint32_t, Window>::node_type ended;
  {
    const std::lock_guard lock(mutex_);
    ended = own_.extract(registration);
  }
  world_.forget(memory);
}

Error Lane::no_such_pe(int pe) const {
  return {Status::out_of_range, fmt::format("PE {} does not exist; there are 0 to {}", pe, pes_ - 1), {.peer = pe}};
}

Result<Lane::Target> Lane::find(const Remote& place) {
  if (!exists(place.pe)) return no_such_pe(place.pe);
  if (place.memory == nullptr || place.memory->handle == nullptr) {
    return Error(Status::invalid, fmt::format("no memory handle for PE {}'s memory", place.pe), {.peer = place.pe});
  }
  // Acquire: whoever sees it may use the window.
  Known* const known = peers_[static_cast<std::size_t>(place.pe)]
                           .recent[Handle::registration_in(*place.memory->handle) % Peer::kRecent]
                           .load(std::memory_order_acquire);
  if (known == nullptr || std::memcmp(known->handle.data(), place.memory->handle->bytes, known->handle.size()) != 0)
    return look_up(place);
  return Target{&known->window, reinterpret_cast<std::uintptr_t>(place.memory->address) - known->address};
}

Result<Lane::Target> Lane::look_up(const Remote& place) {
  const auto handle = Handle::read(*place.memory->handle);
  if (!handle) return handle.error().copy();
  if (handle->pe != static_cast<std::uint32_t>(place.pe) || handle->local_only) {
    return Error(Status::invalid,
                 fmt::format("the memory handle for PE {} is PE {}'s{}", place.pe, handle->pe,
                             handle->local_only ? ", of memory that was registered for its own use" : ""),
                 {.peer = place.pe});
  }
  const auto address = reinterpret_cast<std::uintptr_t>(place.memory->address);
  const std::size_t offset = address - handle->address;  // too large where it is before the first byte: refused later
  const std::lock_guard lock(mutex_);
  if (place.pe == world_.rank()) {
    const auto own = own_.find(handle->registration);
    if (own != own_.end()) return Target{&own->second, offset};
    return Error(Status::invalid, "a memory handle of this PE that was released, or is of another run");
  }
  Peer& peer = peers_[static_cast<std::size_t>(place.pe)];
  auto found = imported_.find({place.pe, handle->registration});
  if (found == imported_.end()) {
    auto window = LoneWindow::import(world_, place.pe, handle->description[number_]);
    if (!window) return std::move(window.error());
    Known known{.address = handle->address, .window = std::move(*window)};
    std::memcpy(known.handle.data(), place.memory->handle->bytes, known.handle.size());
    found = imported_.emplace(std::pair(place.pe, handle->registration), std::move(known)).first;
    Window* none = nullptr;
    // Release: whoever sees them may use the window.
    peer.any.compare_exchange_strong(none, &found->second.window, std::memory_order_release, std::memory_order_relaxed);
  }
  peer.recent[handle->registration % Peer::kRecent].store(&found->second, std::memory_order_release);
  return Target{&found->second.window, offset};
}

Result<void> Lane::submitted(int pe, Result<Ticket> ticket) {
  if (!ticket) return std::move(ticket.error());
  // Relaxed: the caller of `quiet` has made its operations before, or orders its threads itself.
  if (ticket->number != 0) peers_[static_cast<std::size_t>(pe)].submitted.store(true, std::memory_order_relaxed);
  return {};
}

Result<void> Lane::put(const Remote& to, const void* source, std::size_t bytes) {
  const auto target = find(to);
  if (!target) return target.error().copy();
  return submitted(to.pe, target->window->put(to.pe, target->offset, source, bytes));
}

Result<void> Lane::put_value(const Remote& to, const void* value, std::size_t bytes) {
  const auto target = find(to);
  if (!target) return target.error().copy();
  return submitted(to.pe, target->window->put_value(to.pe, target->offset, value, bytes));
}

Result<void> Lane::get(const Remote& from, void* destination, std::size_t bytes) {
  const auto target = find(from);
  if (!target) return target.error().copy();
  return submitted(from.pe, target->window->get(from.pe, target->offset, destination, bytes));
}

Result<void> Lane::atomic(const Remote& on, const Atomic& request) {
  const auto target = find(on);
  if (!target) return target.error().copy();
  Window& window = *target->window;
  if (request.result == nullptr) {
    return submitted(on.pe, window.atomic_word(on.pe, target->offset, request.op, request.bytes, request.operand,
                                               request.compare, nullptr));
  }
  const std::lock_guard lock(fetches_mutex_);
  fetches_.push_back({.window = &window, .pe = on.pe, .result = request.result, .flag = request.flag});
  Fetch& fetch = fetches_.back();
  auto ticket = window.atomic_word(on.pe, target->offset, request.op, request.bytes, request.operand, request.compare,
                                   &fetch.value);
  if (!ticket || ticket->number == 0) {  // refused, or there at once
    const Fetch over = fetch;
    fetches_.pop_back();
    if (!ticket) return std::move(ticket.error());
    return LoneWindow::store_pair(world_, over.result, over.value, over.flag);
  }
  fetch.ticket = *ticket;
  fetching_.store(fetches_.size(), std::memory_order_relaxed);
  return submitted(on.pe, std::move(ticket));
}

Result<void> Lane::fence(int pe) {
  if (!exists(pe)) return no_such_pe(pe);
  const Peer& peer = peers_[static_cast<std::size_t>(pe)];
  if (!peer.submitted.load(std::memory_order_relaxed)) return {};
  return peer.any.load(std::memory_order_acquire)->fence(pe);
}

Result<void> Lane::quiet(int pe) {
  if (!exists(pe)) return no_such_pe(pe);
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  if (!peer.submitted.exchange(false, std::memory_order_relaxed)) return {};
  if (auto quieted = peer.any.load(std::memory_order_acquire)->quiet(pe); !quieted) {
    peer.submitted.store(true, std::memory_order_relaxed);
    return quieted;
  }
  return deliver(pe);
}

Result<void> Lane::progress() {
  world_.progress();
  return deliver(-1);
}

Result<void> Lane::deliver(int pe) {
  if (fetching_.load(std::memory_order_relaxed) == 0) return {};
  const std::lock_guard lock(fetches_mutex_);
  Result<void> worst;
  std::size_t looked = 0;
  for (auto fetch = fetches_.begin(); fetch != fetches_.end() && (pe >= 0 || looked < kMostDelivered); ++looked) {
    if (pe >= 0 && fetch->pe != pe) {
      ++fetch;
      continue;
    }
    auto over = LoneWindow::look(*fetch->window, fetch->ticket);
    if (over && !*over) {
      ++fetch;
      continue;
    }
    Result<void> stored;
    if (over) {
      stored = LoneWindow::store_pair(world_, fetch->result, fetch->value, fetch->flag);
    } else {
      stored = std::move(over.error());
    }
    if (!stored) worst = std::move(stored);
    fetch = fetches_.erase(fetch);
  }
  fetching_.store(fetches_.size(), std::memory_order_relaxed);
  return worst;
}

}  // namespace railyard::nvshmem
