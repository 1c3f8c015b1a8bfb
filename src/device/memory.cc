#include "device/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "base/log.hpp"

namespace railyard::device_detail {

namespace {

constexpr std::size_t kBlockAlignment = 4096;
/// More than any window has; times the threads of a block, it is still a number.
constexpr std::uint64_t kMostDirectBytes = std::uint64_t{1} << 48;

std::size_t aligned(std::size_t at, std::size_t to = 128) { return (at + to - 1) / to * to; }

}  // namespace

BlockLayout::BlockLayout(std::size_t rings, std::size_t depth, std::size_t ranks, std::size_t barriers) {
  progress = aligned(rings * depth * device::detail::kCommandBytes);
  attention = aligned(progress + rings * sizeof(RingProgress));
  lost = aligned(attention + rings * kLineWords * sizeof(Word));
  error = aligned(lost + (ranks + 1) * sizeof(Word));
  failure = aligned(error + sizeof(Report));
  fetched = aligned(failure + sizeof(Report));
  shared_bytes = aligned(fetched + rings * device::detail::kMostFetches * sizeof(Word));

  posted = aligned(rings * sizeof(RingTail));
  peers = aligned(posted + rings * ranks * sizeof(Word));
  barrier_states = aligned(peers + ranks * sizeof(Peer));
  claim = aligned(barrier_states + barriers * sizeof(BarrierState));
  producer_bytes = aligned(claim + sizeof(Word));
}

std::uint32_t barrier_rounds(int ranks) {
  return static_cast<std::uint32_t>(std::bit_width(static_cast<unsigned>(ranks - 1)));
}

void SharedMemory::Free::operator()(std::byte* memory) const { std::free(memory); }

SharedMemory::Block SharedMemory::allocate(std::size_t bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kBlockAlignment, aligned(bytes, kBlockAlignment)));
  if (memory != nullptr) std::memset(memory, 0, bytes);
  return Block(memory);
}

Result<SharedMemory> SharedMemory::open(window_detail::WindowState& window, const DeviceOptions& options) {
  SharedMemory memory(
      BlockLayout(options.rings, options.depth, static_cast<std::size_t>(window.world().size), options.barriers));
  memory.device_ = options.device;
  if (options.device != DeviceOptions::kHost) {
    memory.driver_ = accelerator::driver();
    if (memory.driver_ == nullptr) return Error(Status::not_found, "there is no GPU here, or no driver for it");
    if (options.device < 0 || options.device >= memory.driver_->devices()) {
      return Error(Status::out_of_range,
                   fmt::format("device {} does not exist; there are {}", options.device, memory.driver_->devices()));
    }
  }
  if (const int own = window.allocated_device(); own >= 0 && own != options.device) {
    return Error(
        Status::invalid,
        fmt::format("the window's memory is GPU {}'s, which only kernels of that GPU reach: device {} was asked "
                    "for",
                    own, options.device));
  }
  if (auto taken = memory.take_blocks(options); !taken) return std::move(taken.error());
  if (auto reached = memory.reach_window(window, options); !reached) return std::move(reached.error());
  return memory;
}

Result<void> SharedMemory::take_blocks(const DeviceOptions& options) {
  std::byte* shared = nullptr;
  if (driver_ == nullptr) {
    own_shared_ = allocate(layout_.shared_bytes);
    own_producer_ = allocate(layout_.producer_bytes);
    if (!own_shared_ || !own_producer_) return Error(Status::no_memory, "no memory for command rings");
    shared_ = {own_shared_.get(), layout_.shared_bytes};
    shared = own_shared_.get();
    producer_ = own_producer_.get();
  } else {
    if (options.device_memory.size() < layout_.producer_bytes ||
        reinterpret_cast<std::uintptr_t>(options.device_memory.data()) % alignof(RingTail) != 0) {
      return Error(Status::invalid,
                   fmt::format("device_memory: {} bytes are needed (DeviceProxy::device_bytes), aligned to {}",
                               layout_.producer_bytes, alignof(RingTail)));
    }
    auto pinned = driver_->allocate_pinned(layout_.shared_bytes);
    if (!pinned) return std::move(pinned.error());
    pinned_ = std::move(*pinned);
    shared_ = pinned_->memory();
    std::memset(shared_.data(), 0, layout_.shared_bytes);
    shared = pinned_->device_address();
    producer_ = options.device_memory.data();
  }
  handle_.commands = reinterpret_cast<Word*>(shared + layout_.commands);
  handle_.progress = reinterpret_cast<const RingProgress*>(shared + layout_.progress);
  handle_.attention = reinterpret_cast<Word*>(shared + layout_.attention);
  handle_.lost = reinterpret_cast<const Word*>(shared + layout_.lost);
  handle_.error = reinterpret_cast<const Report*>(shared + layout_.error);
  handle_.failure = reinterpret_cast<Report*>(shared + layout_.failure);
  handle_.fetched = reinterpret_cast<const Word*>(shared + layout_.fetched);
  handle_.tails = reinterpret_cast<RingTail*>(producer_ + layout_.tails);
  handle_.posted = reinterpret_cast<Word*>(producer_ + layout_.posted);
  handle_.peers = reinterpret_cast<const Peer*>(producer_ + layout_.peers);
  handle_.barriers = reinterpret_cast<BarrierState*>(producer_ + layout_.barrier_states);
  handle_.failure_claim = reinterpret_cast<Word*>(producer_ + layout_.claim);
  return {};
}

Result<std::byte*> SharedMemory::reach(std::span<std::byte> memory, bool ours) {
  if (driver_ == nullptr || memory.empty()) return memory.data();
  for (const Reached& known : reached_) {
    if (memory.data() >= known.host.data() && memory.data() + memory.size() <= known.host.data() + known.host.size()) {
      return known.device + (memory.data() - known.host.data());
    }
  }
  if (driver_->find(memory.data())) return memory.data();
  auto pin = driver_->pin(memory);
  if (!pin && ours) return std::move(pin.error());
  if (!pin) {
    // The caller's: pinned already, and then kernels know it by the address that the processor uses.
    log_debug("memory that the caller brought is taken to be pinned: {}", pin.error().message());
    return memory.data();
  }
  std::byte* const address = (*pin)->device_address();
  reached_.push_back({memory, address});
  pins_.push_back(std::move(*pin));
  return address;
}

Result<void> SharedMemory::reach_window(window_detail::WindowState& window, const DeviceOptions& options) {
  WorldState& world = window.world();
  // The heap first, as a whole: data and signals may share a page.
  if (auto heap = reach(window.heap(world.rank), true); !heap) return std::move(heap.error());
  auto data = reach(window.memory(), false);
  if (!data) return std::move(data.error());
  // Host threads that play the kernel's part read what the host does.
  const bool kernels = driver_ != nullptr;
  const auto signal_words = kernels ? window.signals_of_kernels() : window.signals();
  const auto counter_words = kernels ? window.counters_of_kernels() : window.counters();
  auto signals = reach(std::as_writable_bytes(signal_words), false);
  if (!signals) return std::move(signals.error());
  auto counters = reach(std::as_writable_bytes(counter_words), false);
  if (!counters) return std::move(counters.error());
  handle_.local = *data;
  handle_.bytes = window.memory().size();
  handle_.signals = reinterpret_cast<const Word*>(*signals);
  handle_.signal_count = window.signals().size();
  handle_.counters = reinterpret_cast<Word*>(*counters);
  handle_.counter_count = window.counters().size();
  handle_.budget = static_cast<std::uint64_t>(options.budget.count());
  handle_.rank = static_cast<std::uint32_t>(world.rank);
  handle_.size = static_cast<std::uint32_t>(world.size);
  handle_.rings = options.rings;
  handle_.depth = options.depth;
  handle_.barrier_count = options.barriers;
  handle_.barrier_rounds = barrier_rounds(world.size);
  handle_.barrier_signal = options.barrier_signal;
  adds_ = driver_ == nullptr || options.host_atomics;
  handle_.adds_counters = adds_ && !window.counters_on_device();
  handle_.direct_bytes = std::min(options.direct_bytes, kMostDirectBytes);
  if (kernels) {
    handle_.signal_adds = window.signal_adds().data();
    handle_.counter_adds = window.counter_adds().data();
    handle_.adds_counters |= handle_.counter_adds != nullptr;
  }

  std::vector<Peer> peers(static_cast<std::size_t>(world.size));
  for (int rank = 0; options.direct && rank < world.size; ++rank) {
    auto peer = reach_peer(window, rank, options);
    if (!peer) return std::move(peer.error());
    peers[static_cast<std::size_t>(rank)] = *peer;
  }
  // Those of this host are neighbours, where ranks are given out host by host.
  const auto first = std::ranges::find_if(peers, [](const Peer& peer) { return peer.data != nullptr; });
  handle_.first_close = static_cast<std::uint32_t>(first - peers.begin());
  std::copy_n(first, std::min<std::ptrdiff_t>(peers.end() - first, Handle::kClose), handle_.close);
  return upload(peers);
}

/// Memory of a GPU that a window has allocated. Whoever has it mapped keeps it: a kernel that is late stores into
/// memory that nobody else has.
Peer SharedMemory::reach_device(const window_detail::WindowState& window, int rank, const DeviceOptions& options) {
  const window_detail::PeerPart& part = window.part(rank);
  std::byte* base = nullptr;
  int owner = device_;
  if (window.is_self(rank)) {
    base = window.memory().data();
    owner = window.exposed_region().device;
  } else {
    auto mapping = driver_->map(part.share->handle, device_);
    const window_detail::DeviceLayout layout(part.bytes, part.share->signals ? part.signals : 0);
    if (!mapping || layout.counters_at > (*mapping)->memory().size()) {
      log_debug("rank {}'s window is reached through the proxy: {}", rank,
                mapping ? "its memory is shorter than the window" : mapping.error().message());
      return {};
    }
    base = (*mapping)->memory().data();
    owner = (*mapping)->device();
    mappings_.push_back(std::move(*mapping));
  }
  Peer peer{};
  peer.data = base;
  peer.bytes = part.bytes;
  peer.flags = Peer::kDevice | (owner == device_ ? Peer::kSameDevice : 0);
  if (!driver_->atomics_reach(device_, owner)) return peer;
  if (options.direct_atomics) peer.flags |= Peer::kAtomics;
  if (!part.share->signals) return peer;
  const window_detail::DeviceLayout layout(part.bytes, part.signals);
  peer.signals = reinterpret_cast<Word*>(base + layout.signal_adds_at);
  peer.signal_count = part.signals;
  peer.flags |= Peer::kAdds;
  return peer;
}

Result<Peer> SharedMemory::reach_peer(const window_detail::WindowState& window, int rank,
                                      const DeviceOptions& options) {
  if (driver_ != nullptr && window.part(rank).share) return reach_device(window, rank, options);
  Peer peer{};
  const window_detail::DirectPart* const direct = window.part(rank).direct;
  if (direct == nullptr) return peer;
  if (auto heap = reach(window.heap(rank), true); !heap) {
    log_debug("rank {}'s window is reached through the proxy: {}", rank, heap.error().message());
    return peer;
  }
  auto data = reach(direct->data.memory, false);
  if (!data) return std::move(data.error());
  peer.data = *data;
  peer.bytes = direct->data.memory.size();
  if (!adds_) return peer;
  if (window.part(rank).on_device) return peer;
  peer.flags = Peer::kAtomics;
  auto signals = reach(std::as_writable_bytes(direct->data.signals), false);
  if (!signals) return std::move(signals.error());
  peer.signals = reinterpret_cast<Word*>(*signals);
  peer.signal_count = static_cast<std::uint32_t>(direct->data.signals.size());
  return peer;
}

Result<void> SharedMemory::upload(std::span<const Peer> peers) {
  if (driver_ == nullptr) {
    if (!peers.empty()) std::memcpy(producer_ + layout_.peers, peers.data(), peers.size_bytes());
    return {};
  }
  auto staging = driver_->allocate_pinned(layout_.producer_bytes);
  if (!staging) return std::move(staging.error());
  const std::span<std::byte> bytes = (*staging)->memory();
  std::memset(bytes.data(), 0, layout_.producer_bytes);
  std::memcpy(bytes.data() + layout_.peers, peers.data(), peers.size_bytes());
  auto queue = driver_->open_queue(device_);
  if (!queue) return std::move(queue.error());
  auto copied = (*queue)->copy(producer_, bytes.data(), layout_.producer_bytes);
  if (!copied) return std::move(copied.error());
  queue->reset();  // waits
  return {};
}

std::byte* SharedMemory::host_address(std::uint64_t named) const {
  auto* const address = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(named));
  for (const Reached& known : reached_) {
    if (address >= known.device && address < known.device + known.host.size()) {
      return known.host.data() + (address - known.device);
    }
  }
  return address;
}

Result<void> SharedMemory::clear_claim() {
  if (driver_ == nullptr) {
    __atomic_store_n(handle_.failure_claim, 0, __ATOMIC_RELEASE);
    return {};
  }
  auto queue = driver_->open_queue(device_);
  if (!queue) return std::move(queue.error());
  auto stored = (*queue)->store(handle_.failure_claim, 0);
  return stored ? Result<void>() : Result<void>(std::move(stored.error()));
}

}  // namespace railyard::device_detail
