#include "window/lone_window.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstring>

#include "base/bytes.hpp"
#include "base/log.hpp"
#include "memory/location.hpp"
#include "window/window_state.hpp"

namespace railyard {
namespace window_detail {
namespace {

constexpr std::uint32_t kLoneMagic = 0x656e6f6c;  // "lone"
constexpr std::size_t kMostKeys = 64;             // as many as the set of keys whose base is the address has bits

}  // namespace

void WindowState::stand_alone() {
  lone_ = true;
  first_rank_ = world_.rank;
  auto own = std::make_unique<DirectPart>();
  own->data = exposed_region_;
  own->sleepers = sleepers_;
  parts_.push_back({exposed_region_.memory.size(), exposed_region_id_, 0, 0, on_device_, own.get()});
  direct_parts_.push_back(std::move(own));
  log_made();
}

Result<std::vector<std::byte>> WindowState::describe() const {
  if (!lone_ || region_ == nullptr || parts_.empty()) {
    return Error(Status::invalid, "describe: not memory that this rank has opened alone, or it is closed");
  }
  const std::size_t rails = engine_.rails().size();
  if (rails > kMostKeys) {
    return Error(
        Status::unsupported,
        fmt::format("describe: {} rails; a description holds the keys of {}: set RAILYARD_RAILS", rails, kMostKeys));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(region_->memory().data());
  std::uint64_t at_address = 0;  // a rail calls offset 0 either so or 0
  ByteWriter keys;
  for (std::size_t rail = 0; rail < rails; ++rail) {
    const fabric::Registration& registration = region_->on(rail);
    if (registration.remote_base == address) {
      at_address |= std::uint64_t{1} << rail;
    } else if (registration.remote_base != 0) {
      return Error(Status::unsupported,
                   fmt::format("describe: {} names memory in a way of its own", engine_.rails()[rail]->name()),
                   {.rail = static_cast<int>(rail), .operation = "describe"});
    }
    keys.u64(registration.key);
  }
  ByteWriter writer;
  writer.u32(kLoneMagic);
  writer.u32(exposed_region_id_);
  writer.u64(exposed_region_.memory.size());
  writer.u64(address);
  writer.u64(at_address);
  writer.u8(on_device_ ? 1 : 0);
  writer.u8(static_cast<std::uint8_t>(rails));
  writer.raw(keys.bytes());
  return writer.take();
}

Result<void> WindowState::import(int rank, std::span<const std::byte> description) {
  const Error::Where where{.peer = rank, .operation = "import"};
  if (rank < 0 || rank >= world_.size) {
    return Error(Status::out_of_range,
                 fmt::format("import: rank {} does not exist; ranks are 0 to {}", rank, world_.size - 1), where);
  }
  if (is_self(rank)) return Error(Status::invalid, "import: this rank's own memory: use the window itself", where);
  ByteReader reader(description);
  if (reader.u32() != kLoneMagic) reader.fail();
  PeerPart part;
  part.exposed_region = reader.u32();
  part.bytes = reader.u64();
  const std::uint64_t address = reader.u64();
  const std::uint64_t at_address = reader.u64();
  part.on_device = reader.u8() != 0;
  const std::uint8_t rails = reader.u8();
  if (rails > kMostKeys) reader.fail();
  storage_ = std::make_shared<Storage>();
  for (std::size_t rail = 0; rail < rails && reader.ok(); ++rail) {
    storage_->keys.push_back({reader.u64(), ((at_address >> rail) & 1U) != 0 ? address : 0});
  }
  if (!reader.done()) {
    return Error(Status::invalid,
                 fmt::format("import: these {} bytes describe no memory of rank {}", description.size(), rank), where);
  }
  // Keys are looked up by the rails that the peer has told of.
  const auto known = world_.membership->directory().find(world_.world_rank(rank));
  if (!known) return known.error().copy();
  if (known->rails.size() != rails) {
    return Error(Status::invalid,
                 fmt::format("import: keys of {} rails, where rank {} has {}: made in another world?", rails, rank,
                             known->rails.size()),
                 where);
  }
  storage_->rails = rails;
  gpus_ = accelerator::may_have_gpus() || part.on_device;
  for (const auto* rail : engine_.rails()) may_relax_ &= rail->capabilities().delivery_complete;
  lone_ = true;
  first_rank_ = rank;
  parts_.push_back(part);
  log_debug("window {}: made, {} bytes that rank {} has opened alone; reached by rails", use_.number(), part.bytes,
            rank);
  return {};
}

Result<void> WindowState::check_collective(const char* call) const {
  if (!lone_) return {};
  return Error(Status::unsupported,
               fmt::format("{}: rank {} made this window alone: the others take no part in it", call, first_rank_),
               {.operation = call});
}

Result<void> WindowState::store_pair(WorldState& world, void* to, std::uint64_t value, std::uint64_t flag) {
  auto* const words = static_cast<std::uint64_t*>(to);
  if (to == nullptr || reinterpret_cast<std::uintptr_t>(to) % alignof(std::uint64_t) != 0) {
    return Error(Status::invalid, fmt::format("store_pair: {} is no address of words", to));
  }
  const auto device = memory::find_device(to);
  if (!device) {
    std::atomic_ref<std::uint64_t>(words[0]).store(value, std::memory_order_relaxed);
    // Release: whoever sees the flag sees the value.
    std::atomic_ref<std::uint64_t>(words[1]).store(flag, std::memory_order_release);
    return {};
  }
  const std::lock_guard lock(world.home().copies_mutex);
  fabric::DeviceCopies& copies = world.home().copies;
  if (auto stored = copies.copy_now(words, device->device, &value, -1, sizeof value); !stored) return stored;
  return copies.copy_now(words + 1, device->device, &flag, -1, sizeof flag);
}

}  // namespace window_detail

using window_detail::WindowAccess;
using window_detail::WindowState;
using window_detail::WorldAccess;

Result<Window> LoneWindow::open(World& world, std::span<std::byte> memory) {
  if (memory.data() == nullptr || memory.empty()) {
    return Error(Status::invalid, "a lone window needs memory: the address is null or there are no bytes");
  }
  auto state = std::make_unique<WindowState>(WorldAccess::state(world));
  if (auto begun = state->begin(memory, 0, {.signals = 0, .counters = 0}); !begun) return std::move(begun.error());
  state->stand_alone();
  return WindowAccess::make(std::move(state));
}

Result<std::vector<std::byte>> LoneWindow::describe(const Window& window) {
  return WindowAccess::state(window).describe();
}

Result<Window> LoneWindow::import(World& world, int rank, std::span<const std::byte> description) {
  auto state = std::make_unique<WindowState>(WorldAccess::state(world));
  if (auto imported = state->import(rank, description); !imported) return std::move(imported.error());
  return WindowAccess::make(std::move(state));
}

Result<bool> LoneWindow::look(const Window& window, const Ticket& ticket) {
  const WindowState& state = WindowAccess::state(window);
  if (auto checked = state.check_rank("look", ticket.peer); !checked) return std::move(checked.error());
  return state.look(ticket, Completion::remote);
}

Result<void> LoneWindow::store_pair(World& world, void* to, std::uint64_t value, std::uint64_t flag) {
  return WindowState::store_pair(WorldAccess::state(world), to, value, flag);
}

}  // namespace railyard
