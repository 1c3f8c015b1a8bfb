#include "state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "accelerator/waiting_kernels.hpp"
#include "base/log.hpp"
#include "log.hpp"
#include "memory/location.hpp"
#include "rails.hpp"

namespace railyard::nvshmem {

void State::set_gpu(const abi::PcieId& gpu) {
  if (gpu.bus < 0 || gpu.domain < 0 || gpu.device < 0) return;
  gpu_ = fmt::format("{:04x}:{:02x}:{:02x}.0", gpu.domain, gpu.bus, gpu.device);
}

Result<void> State::connect(abi::Bootstrap* bootstrap, int pe, int pes) {
  if (lanes_[0] != nullptr) return {};
  auto met = HostBootstrap::open(bootstrap);
  if (!met) return std::move(met.error());
  if ((*met)->rank() != pe || (*met)->size() != pes) {
    return Error(Status::invalid, fmt::format("this is PE {} of {}, and for the bootstrap PE {} of {}", pe, pes,
                                              (*met)->rank(), (*met)->size()));
  }
  const Settings near = near_gpu(settings_, gpu_);
  std::unique_ptr<Lane> opened[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) {
    auto settings = with_most_rails(near, i == 0 ? kHostRails : kProxyRails);
    if (!settings) return std::move(settings.error());
    auto lane = Lane::open(i, *settings, **met);
    if (!lane) return std::move(lane.error());
    opened[i] = std::move(*lane);
  }
  std::ranges::move(opened, lanes_);
  bootstrap_ = std::move(*met);
  return {};
}

Result<std::vector<std::vector<std::byte>>> State::expose(std::uint32_t number, std::span<std::byte> memory) {
  std::vector<std::vector<std::byte>> descriptions;
  for (const auto& lane : lanes_) {
    auto description = lane->expose(number, memory);
    if (!description) return std::move(description.error());
    descriptions.push_back(std::move(*description));
  }
  return descriptions;
}

Result<void> State::register_memory(abi::MemHandle& handle, std::span<std::byte> memory, bool local_only) {
  if (lanes_[0] == nullptr) return Error(Status::invalid, "before connect_endpoints");
  if (memory.data() == nullptr || memory.empty())
    return Error(Status::invalid, fmt::format("{} bytes at {}", memory.size(), static_cast<void*>(memory.data())));
  const std::lock_guard lock(mutex_);
  if (!advised_ && memory::find_device(memory.data())) {
    advised_ = true;
    if (const std::string advice = accelerator::advice_for_waiting_kernels(); !advice.empty())
      log_warn("NVSHMEM transport: {}; `railyard nvshmem-env` prints all that is to be set", advice);
  }
  const std::uint32_t number = registrations_made_ + 1;
  Handle made;
  made.pe = static_cast<std::uint32_t>(bootstrap_->rank());
  made.registration = number;
  made.local_only = local_only;
  made.address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::vector<std::vector<std::byte>> descriptions(kLanes);
  Result<void> done;
  if (local_only) {
    for (const auto& lane : lanes_)
      if (auto kept = lane->keep(memory); !kept) done = std::move(kept);
  } else if (auto exposed = expose(number, memory)) {
    descriptions = std::move(*exposed);
  } else {
    done = std::move(exposed.error());
  }
  for (std::size_t i = 0; i < kLanes; ++i) made.description[i] = descriptions[i];
  if (done) done = made.write(handle);
  if (!done) {
    for (const auto& lane : lanes_) lane->end(number, memory);
    return done;
  }
  registrations_made_ = number;
  registrations_.emplace(number, Registration{memory, local_only});
  return {};
}

Result<void> State::release(const abi::MemHandle& handle) {
  const auto known = Handle::read(handle);
  if (!known) return known.error().copy();
  if (lanes_[0] == nullptr) return Error(Status::invalid, "before connect_endpoints");
  if (known->pe != static_cast<std::uint32_t>(bootstrap_->rank())) return {};  // a peer's: it is not ours to release
  const std::lock_guard lock(mutex_);
  const auto found = registrations_.find(known->registration);
  if (found == registrations_.end()) {
    return Error(Status::invalid, fmt::format("registration {} was released already", known->registration));
  }
  for (const auto& lane : lanes_) lane->end(found->first, found->second.memory);
  registrations_.erase(found);
  return {};
}

Result<void> State::progress() {
  if (lanes_[0] == nullptr) return {};  // nothing to do yet
  // Both: a peer's operations arrive in the lane that it used.
  for (const auto& lane : lanes_)
    if (auto moved = lane->progress(); !moved) return moved;
  return {};
}

void State::finish() {
  for (const auto& lane : lanes_) {
    if (lane == nullptr) continue;
    for (int pe = 0; pe < lane->world().size(); ++pe)
      if (auto quieted = lane->quiet(pe); !quieted) fail("finalize", quieted.error());
  }
  for (auto& lane : lanes_) lane.reset();
  registrations_.clear();
  bootstrap_.reset();
}

std::string State::describe() {
  if (lanes_[0] == nullptr) return "not connected";
  const World& host = lanes_[0]->world();
  return fmt::format("PE {} of {}, {} rails for the host, {} for its proxy", host.rank(), host.size(),
                     host.rail_count(), lanes_[1]->world().rail_count());
}

}  // namespace railyard::nvshmem
