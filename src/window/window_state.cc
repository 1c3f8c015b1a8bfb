/// Making a window: this rank's part, what it tells the others, and what it learns from them.
#include "window/window_state.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/bytes.hpp"
#include "base/log.hpp"
#include "memory/location.hpp"
#include "window/assemble.hpp"

namespace railyard::window_detail {
namespace {

constexpr std::uint32_t kMagic = 0x646e6977;  // "wind"
constexpr std::uint16_t kMostRails = 256;

/// A rank's part, as it travels.
struct Offer {
  std::string refusal;  ///< why the rank cannot take part; empty: it can
  PeerPart part;
  bool per_rank = false;
  bool native_atomics = false;
  std::vector<transport::RemoteKey> keys;
  std::optional<memory::HeapName> heap;  ///< where its memory can be mapped
  bool signals_in_heap = false;
};

void write_share(ByteWriter& writer, const DeviceShare& share) {
  share.owner.write(writer);
  writer.i32(share.handle.pid);
  writer.i32(share.handle.descriptor);
  writer.u64(share.handle.owner);
  writer.raw(share.handle.device_uuid);
  writer.u64(share.handle.bytes);
  writer.u64(share.handle.id);
  writer.u8(share.signals ? 1 : 0);
}

DeviceShare read_share(ByteReader& reader) {
  DeviceShare share;
  share.owner = memory::HeapName::read(reader);
  share.handle.kind = accelerator::ShareHandle::Kind::descriptor;
  share.handle.pid = reader.i32();
  share.handle.descriptor = reader.i32();
  share.handle.owner = reader.u64();
  const auto uuid = reader.raw(share.handle.device_uuid.size());
  if (!uuid.empty()) std::ranges::copy(uuid, share.handle.device_uuid.begin());
  share.handle.bytes = reader.u64();
  share.handle.id = reader.u64();
  share.signals = reader.u8() != 0;
  return share;
}

std::vector<std::byte> write_offer(const Offer& offer) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.text(offer.refusal);
  writer.u64(offer.part.bytes);
  writer.u32(offer.part.exposed_region);
  writer.u32(offer.part.barrier_exposed_region);
  writer.u32(offer.part.signals);
  writer.u8(offer.part.on_device ? 1 : 0);
  writer.u8(offer.per_rank ? 1 : 0);
  writer.u8(offer.native_atomics ? 1 : 0);
  writer.u16(static_cast<std::uint16_t>(offer.keys.size()));
  for (const auto& key : offer.keys) {
    writer.u64(key.key);
    writer.u64(key.base);
  }
  writer.u8(offer.heap ? 1 : 0);
  if (offer.heap) {
    offer.heap->write(writer);
    writer.u8(offer.signals_in_heap ? 1 : 0);
  }
  writer.u8(offer.part.share ? 1 : 0);
  if (offer.part.share) write_share(writer, *offer.part.share);
  return writer.take();
}

Result<Offer> read_offer(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Offer offer;
  if (reader.u32() != kMagic) reader.fail();
  offer.refusal = reader.text(4096);
  offer.part.bytes = reader.u64();
  offer.part.exposed_region = reader.u32();
  offer.part.barrier_exposed_region = reader.u32();
  offer.part.signals = reader.u32();
  offer.part.on_device = reader.u8() != 0;
  offer.per_rank = reader.u8() != 0;
  offer.native_atomics = reader.u8() != 0;
  const std::uint16_t keys = reader.u16();
  if (keys > kMostRails) reader.fail();
  for (std::uint16_t i = 0; i < keys && reader.ok(); ++i) {
    transport::RemoteKey key;
    key.key = reader.u64();
    key.base = reader.u64();
    offer.keys.push_back(key);
  }
  if (reader.u8() != 0) {
    offer.heap = memory::HeapName::read(reader);
    offer.signals_in_heap = reader.u8() != 0;
  }
  if (reader.u8() != 0) offer.part.share = read_share(reader);
  if (!reader.done()) {
    return Error(Status::invalid,
                 "not a window's offer: do all ranks make the same collective calls in the same order?");
  }
  return offer;
}

}  // namespace

Result<Pages> Pages::open(std::size_t bytes) {
  Pages pages;
  void* address =
      ::mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return Error(Status::no_memory, fmt::format("a window of {} bytes: {}", bytes, std::strerror(errno)));
  }
  pages.memory_ = {static_cast<std::byte*>(address), bytes};
  return pages;
}

Result<Pages> Pages::open_words(std::size_t count) {
  if (count > SIZE_MAX / 16) return Error(Status::no_memory, fmt::format("a window of {} signals or counters", count));
  return open(count * sizeof(std::uint64_t));
}

Pages::~Pages() {
  if (memory_.data() != nullptr) ::munmap(memory_.data(), std::max<std::size_t>(memory_.size(), 1));
}

HeapLayout::HeapLayout(std::uint64_t data, std::uint64_t signals, std::uint64_t barrier_words) {
  constexpr std::uint64_t kLine = 64;
  const auto after = [](std::uint64_t at) { return (at + kLine - 1) / kLine * kLine; };
  signals_at = after(data);
  barrier_at = after(signals_at + signals * sizeof(std::uint64_t));
  sleepers_at = after(barrier_at + barrier_words * sizeof(std::uint64_t));  // a line that no signal moves
  bytes = sleepers_at + kLine;
}

DeviceLayout::DeviceLayout(std::uint64_t data, std::uint64_t signals, std::uint64_t counters) {
  constexpr std::uint64_t kLine = 128;
  const auto after = [](std::uint64_t at) { return (at + kLine - 1) / kLine * kLine; };
  signals_at = after(data);
  signal_adds_at = after(signals_at + signals * sizeof(std::uint64_t));
  counters_at = after(signal_adds_at + signals * sizeof(std::uint64_t));
  counter_adds_at = after(counters_at + counters * sizeof(std::uint64_t));
  bytes = after(counter_adds_at + counters * sizeof(std::uint64_t));
}

void WindowState::log_made() const {
  const std::size_t mapped = direct_parts_.size() - 1;  // one is this rank's own
  log_debug("window {}: made, {} bytes of {}; {} peers mapped directly, {} reached by rails", use_.number(), use_.bytes,
            memory::location_name(exposed_region_.device), mapped, parts_.size() - 1 - mapped);
}

void WindowState::shut(bool together) {
  const transport::ProgressGuard hold(engine_.progress_lock());
  if (!parts_.empty()) log_debug("window {}: destroyed", use_.number());
  home_.remove_window(use_);
  if (exposed_region_id_ != 0) engine_.exposed().conceal(exposed_region_id_);
  if (barrier_exposed_region_id_ != 0) engine_.exposed().conceal(barrier_exposed_region_id_);
  exposed_region_id_ = barrier_exposed_region_id_ = 0;
  exposed_region_ = {};
  engine_.completions().forget_counters(counters_);
  if (storage_ != nullptr && storage_->device_counters) {
    engine_.completions().forget_counters(storage_->device_counters->latest());
    engine_.exposed().forget_mirror(*storage_->device_counters);
  }
  counters_ = {};
  parts_.clear();
  direct_parts_.clear();
  has_direct_peers_ = false;
  // Peers may not have noticed yet, or be lost to us and alive: whatever they go on sending lands nowhere.
  if (region_ != nullptr) {
    engine_.cache().forget(region_->memory());
    if (together) region_->settle();
    engine_.revocation().revoke(*region_);
  }
  region_.reset();
  if (sleepers_ != nullptr) home_.remove_sleepers(sleepers_);
  sleepers_ = nullptr;
  storage_.reset();
}

std::size_t WindowState::barrier_words() const {
  return kWordsPerRound * static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(world_.size)));
}

namespace {

/// The parts of a window in a heap that holds them. Returns where its sleepers are counted.
transport::Sleepers* lay_out(std::span<std::byte> memory, const HeapLayout& layout, std::size_t bytes,
                             std::size_t signals, std::size_t barrier_words, transport::ExposedRegion& data,
                             transport::ExposedRegion& barrier) {
  const auto words = [&](std::uint64_t at, std::uint64_t count) {
    return std::span(reinterpret_cast<std::uint64_t*>(memory.data() + at), count);
  };
  data.memory = memory.first(bytes);
  data.signals = words(layout.signals_at, signals);
  barrier.signals = words(layout.barrier_at, barrier_words);
  // The heap is zeroed: nobody sleeps.
  return reinterpret_cast<transport::Sleepers*>(memory.data() + layout.sleepers_at);
}

}  // namespace

bool WindowState::take_heap(std::size_t bytes, std::size_t signals) {
  if (!world_.shares_memory || bytes > SIZE_MAX / 4) return false;
  const HeapLayout layout(bytes, signals, barrier_words());
  auto heap = memory::Heap::open(layout.bytes);
  if (!heap) {
    log_debug("a window of {} bytes that no peer can map: {}", bytes, heap.error().message());
    return false;
  }
  storage_->heap = std::move(*heap);
  sleepers_ = lay_out(storage_->heap.memory(), layout, bytes, signals, barrier_words(), exposed_region_,
                      barrier_exposed_region_);
  return true;
}

Result<void> WindowState::take_memory(std::span<std::byte> memory, std::size_t bytes, const WindowOptions& options) {
  const std::size_t signals = own_signals_ ? options.signals : 0;
  if (options.device >= 0) {
    if (memory.data() != nullptr)
      return Error(Status::invalid, "device: memory that the caller brings is where it is: use allocate, or leave it");
    return take_device(bytes, options);
  }
  if (memory.data() == nullptr && take_heap(bytes, signals)) return {};
  if (memory.data() == nullptr) {
    auto pages = Pages::open(bytes);
    if (!pages) return std::move(pages.error());
    storage_->pages = std::move(*pages);
    memory = storage_->pages.memory();
  } else if (auto usable = memory::check_usable(memory); !usable) {
    return std::move(usable.error());
  } else {
    on_device_ = *usable >= 0;
    exposed_region_.device = *usable;
  }
  exposed_region_.memory = memory;
  return take_own_words(signals);
}

/// Signals and barrier words that peers reach through the engine alone.
Result<void> WindowState::take_own_words(std::size_t signals) {
  auto words = Pages::open_words(signals);
  if (!words) return std::move(words.error());
  storage_->own_signals = std::move(*words);
  exposed_region_.signals = storage_->own_signals.words();
  storage_->own_barrier_words.resize(barrier_words());
  barrier_exposed_region_.signals = storage_->own_barrier_words;
  return {};
}

Result<void> WindowState::begin(std::span<std::byte> memory, std::size_t bytes, const WindowOptions& options) {
  storage_ = std::make_shared<Storage>();
  gpus_ = accelerator::may_have_gpus();
  sleepers_ = &storage_->own_sleepers;
  per_rank_ = options.per_rank;
  native_atomics_ = options.native_atomics;
  if (native_atomics_ && std::ranges::none_of(engine_.rails(), [](const fabric::Rail* rail) {
        return rail->capabilities().native_atomics;
      }))
    return Error(Status::unsupported,
                 "native_atomics: no rail here has them. They need RDMA ports (RAILYARD_DRIVER=verbs)");
  own_signals_ = options.signal_memory.data() == nullptr;
  if (options.signals > UINT32_MAX) return Error(Status::out_of_range, "more than 2^32 signals in one window");
  if (auto taken = take_memory(memory, bytes, options); !taken) return taken;
  if (on_device_) {
    if (auto ready = home_.prepare_copies(exposed_region_.memory); !ready) return ready;
  }
  if (auto placed = place_words(options); !placed) return placed;

  const transport::ProgressGuard hold(engine_.progress_lock());
  use_.bytes = exposed_region_.memory.size();
  exposed_region_.world = barrier_exposed_region_.world = &world_.membership->ranks();
  if (!exposed_region_.memory.empty()) {
    auto region =
        memory::Region::open(engine_.rails(), exposed_region_.memory, {.remote = true, .bulk = !native_atomics_});
    if (!region) return std::move(region.error());
    region_ = std::move(*region);
  }
  for (const auto* rail : engine_.rails()) may_relax_ &= rail->capabilities().delivery_complete;
  if (exposed_region_.device >= 0) {
    if (auto ready = engine_.exposed().words().prepare(exposed_region_.device); !ready) return ready;
  }
  if (storage_->device_counters) engine_.exposed().mirror_counters(*storage_->device_counters);
  if (!counter_adds().empty()) engine_.exposed().words().watch(*storage_->device_counters);
  const auto id = engine_.exposed().expose(exposed_region_);
  if (!id) return id.error().copy();
  exposed_region_id_ = *id;
  const auto barrier_id = engine_.exposed().expose(barrier_exposed_region_);
  if (!barrier_id) return barrier_id.error().copy();
  barrier_exposed_region_id_ = *barrier_id;
  if (!signal_adds().empty()) engine_.exposed().words().watch(*storage_->device_signals);
  return {};
}

std::vector<std::byte> WindowState::contribution() const {
  Offer offer;
  offer.part = {exposed_region_.memory.size(), exposed_region_id_, barrier_exposed_region_id_,
                static_cast<std::uint32_t>(exposed_region_.signals.size()), on_device_};
  if (storage_->device_share != nullptr)
    offer.part.share = {memory::HeapName::of_process(), storage_->device_share->handle(), !signal_adds().empty()};
  offer.per_rank = per_rank_;
  offer.native_atomics = native_atomics_;
  for (std::size_t rail = 0; rail < engine_.rails().size(); ++rail) {
    offer.keys.push_back(region_ == nullptr
                             ? transport::RemoteKey{}
                             : transport::RemoteKey{region_->on(rail).key, region_->on(rail).remote_base});
  }
  if (storage_->heap) {
    offer.heap = storage_->heap.name();
    offer.signals_in_heap = own_signals_;
  }
  return write_offer(offer);
}

/// Maps a peer's part, if this process can: otherwise the engine brings everything there, as to any other peer.
void WindowState::reach_directly(int rank, const memory::HeapName& name, bool signals_in_heap) {
  PeerPart& peer = part_of(rank);
  auto heap = memory::Heap::map(name);
  if (!heap) {
    log_debug("rank {}'s window is not mapped: {}", rank, heap.error().message());
    return;
  }
  const std::size_t signals = signals_in_heap ? peer.signals : 0;
  const std::span<std::byte> memory = heap->memory();
  // Bytes first: the sum must not overflow.
  if (peer.bytes > memory.size() || HeapLayout(peer.bytes, signals, barrier_words()).bytes > memory.size()) {
    log_debug("rank {}'s window is not mapped: its heap is shorter than the window", rank);
    return;
  }
  auto part = std::make_unique<DirectPart>();
  part->sleepers = lay_out(memory, HeapLayout(peer.bytes, signals, barrier_words()), peer.bytes, signals,
                           barrier_words(), part->data, part->barrier);
  part->heap = std::move(*heap);
  peer.direct = part.get();
  direct_parts_.push_back(std::move(part));
  has_direct_peers_ = true;
  const transport::ProgressGuard hold(engine_.progress_lock());  // whoever publishes looks at it
  use_.expect_direct();
}

Result<void> WindowState::finish(std::span<const std::vector<std::byte>> all) {
  if (all.size() != static_cast<std::size_t>(world_.size)) {
    return Error(Status::invalid, fmt::format("{} offers for {} ranks", all.size(), world_.size));
  }
  std::vector<Offer> offers;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto offer = read_offer(all[rank]);
    const Error::Where where{.peer = static_cast<int>(rank), .operation = "window"};
    if (!offer) return Error(offer.status(), fmt::format("rank {}: {}", rank, offer.error().message()), where);
    if (!offer->refusal.empty()) {
      return Error(Status::invalid,
                   fmt::format("rank {} could not make its part of the window: {}", rank, offer->refusal), where);
    }
    if (offer->native_atomics != native_atomics_) {
      return Error(
          Status::invalid,
          fmt::format("rank {} makes the window {} native_atomics, rank {} {}: they must agree", rank,
                      offer->native_atomics ? "with" : "without", world_.rank, native_atomics_ ? "with" : "without"),
          where);
    }
    if (!per_rank_ && offer->part.bytes != exposed_region_.memory.size()) {
      return Error(
          Status::invalid,
          fmt::format("window sizes differ: rank {} brings {} bytes, rank {} brings {}; give every rank the same "
                      "size or set per_rank",
                      rank, offer->part.bytes, world_.rank, exposed_region_.memory.size()),
          where);
    }
    storage_->rails = std::max(storage_->rails, offer->keys.size());
    offers.push_back(std::move(*offer));
  }
  storage_->keys.resize(offers.size() * storage_->rails);
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    parts_.push_back(offers[rank].part);
    gpus_ |= offers[rank].part.on_device;
    // Mapped when kernels need it (src/device): here only whether that can be.
    if (auto& share = parts_.back().share; share && (!world_.shares_memory || !share->owner.check_here()))
      share.reset();
    std::copy(offers[rank].keys.begin(), offers[rank].keys.end(),
              storage_->keys.begin() + static_cast<std::ptrdiff_t>(rank * storage_->rails));
  }
  auto own = std::make_unique<DirectPart>();
  own->data = exposed_region_;
  if (storage_->device_signals) own->data.signals = {};  // the engine alone writes those
  own->barrier = barrier_exposed_region_;
  own->sleepers = sleepers_;
  part_of(world_.rank).direct = own.get();
  direct_parts_.push_back(std::move(own));
  for (int rank = 0; world_.shares_memory && rank < world_.size; ++rank) {
    const Offer& offer = offers[static_cast<std::size_t>(rank)];
    if (rank != world_.rank && offer.heap) reach_directly(rank, *offer.heap, offer.signals_in_heap);
  }
  const transport::ProgressGuard hold(engine_.progress_lock());
  home_.add_sleepers(sleepers_);
  log_made();
  return {};
}

Result<void> WindowState::check_open(const char* call) const {
  if (!parts_.empty()) return {};
  return Error(Status::invalid, fmt::format("{}: the window is closed", call), {.operation = call});
}

Result<void> WindowState::check_rank(const char* call, int rank) const {
  if (auto open = check_open(call); !open) return open;
  if (index_of(rank) < parts_.size()) return {};
  if (rank >= 0 && rank < world_.size) {
    return Error(Status::out_of_range,
                 fmt::format("{}: this memory is rank {}'s, not rank {}'s", call, first_rank_, rank),
                 {.peer = rank, .operation = call});
  }
  return Error(Status::out_of_range,
               fmt::format("{}: rank {} does not exist; ranks are 0 to {}", call, rank, world_.size - 1),
               {.peer = rank, .operation = call});
}

[[gnu::hot]] Result<void> WindowState::check_range(const char* call, int rank, std::size_t offset, const void* memory,
                                                   std::size_t bytes) const {
  if (auto checked = check_rank(call, rank); !checked) return checked;
  const std::uint64_t size = part(rank).bytes;
  if (offset > size || bytes > size - offset) {
    return Error(Status::out_of_range,
                 fmt::format("{}: {} bytes at offset {} do not fit in the {} bytes of rank {}'s window", call, bytes,
                             offset, size, rank),
                 {.peer = rank, .operation = call});
  }
  if (memory == nullptr && bytes > 0) {
    return Error(Status::invalid, fmt::format("{}: {} bytes from or to a null pointer", call, bytes),
                 {.peer = rank, .operation = call});
  }
  return {};
}

[[gnu::hot]] Result<void> WindowState::check_signal(const char* call, int rank, std::size_t index) const {
  if (auto checked = check_rank(call, rank); !checked) return checked;
  if (index < part(rank).signals) return {};
  return Error(Status::out_of_range,
               fmt::format("{}: signal {} does not exist; rank {}'s window has {} (WindowOptions::signals)", call,
                           index, rank, part(rank).signals),
               {.peer = rank, .operation = call});
}

Error WindowState::unknown(const char* call, const char* what, int value, const char* known) {
  return {Status::invalid,
          fmt::format("{}: there is no {} {}; there are {}", call, what, value, known),
          {.operation = call}};
}

Result<void> WindowState::check_counter(const char* call, std::size_t index) const {
  if (auto open = check_open(call); !open) return open;
  if (index < counters_.size()) return {};
  return Error(Status::out_of_range,
               fmt::format("{}: counter {} does not exist; this window has {} (WindowOptions::counters)", call, index,
                           counters_.size()),
               {.operation = call});
}

}  // namespace railyard::window_detail

namespace railyard {

WindowAssembly::WindowAssembly() = default;
WindowAssembly::WindowAssembly(WindowAssembly&&) noexcept = default;
WindowAssembly& WindowAssembly::operator=(WindowAssembly&&) noexcept = default;
WindowAssembly::~WindowAssembly() = default;

WindowAssembly WindowAssembly::begin(World& world, std::size_t bytes, const WindowOptions& options) {
  WindowAssembly assembly;
  assembly.state_ = std::make_unique<window_detail::WindowState>(window_detail::WorldAccess::state(world));
  if (auto begun = assembly.state_->begin({}, bytes, options); !begun) assembly.error_ = std::move(begun.error());
  return assembly;
}

WindowAssembly WindowAssembly::begin(World& world, std::span<std::byte> memory, const WindowOptions& options) {
  WindowAssembly assembly;
  assembly.state_ = std::make_unique<window_detail::WindowState>(window_detail::WorldAccess::state(world));
  if (memory.data() == nullptr) {
    assembly.error_ = Error(Status::invalid, "adopt: null memory; use allocate for a window of its own memory");
  } else if (auto begun = assembly.state_->begin(memory, 0, options); !begun) {
    assembly.error_ = std::move(begun.error());
  }
  return assembly;
}

std::vector<std::byte> WindowAssembly::contribution() const {
  if (error_.status() == Status::ok) return state_->contribution();
  window_detail::Offer offer;
  offer.refusal = error_.message().empty() ? to_string(error_.status()) : error_.message();
  return window_detail::write_offer(offer);
}

}  // namespace railyard
