#include "memory/region.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/log.hpp"
#include "memory/location.hpp"

namespace railyard::memory {

namespace {

Error no_way(std::span<const std::byte> memory, const fabric::Access& access) {
  return Error(Status::unsupported, fmt::format("{} bytes of GPU {}: no rail here reaches the memory of GPUs",
                                                memory.size(), access.device));
}

}  // namespace

Region::Region(std::span<fabric::Rail* const> rails, std::span<std::byte> memory)
    : memory_(memory), rails_(rails.begin(), rails.end()) {
  registrations_.reserve(rails_.size());
}

Region::~Region() { revoke(); }

void Region::revoke() {
  if (std::exchange(revoked_, true)) return;
  for (std::size_t i = 0; i < registrations_.size(); ++i) {
    if (rails_[i] == nullptr) continue;
    settled_ ? rails_[i]->deregister(registrations_[i]) : rails_[i]->revoke(registrations_[i]);
  }
}

Result<std::shared_ptr<Region>> Region::open(std::span<fabric::Rail* const> rails, std::span<std::byte> memory,
                                             fabric::Access access) {
  std::shared_ptr<Region> region(new Region(rails, memory));
  std::size_t dead = 0;
  if (const auto device = find_device(memory.data())) region->device_ = access.device = device->device;
  for (fabric::Rail*& rail : region->rails_) {
    auto registration = access.device < 0 || rail->capabilities().device_memory
                            ? rail->register_memory(memory, access)
                            : Result<fabric::Registration>(no_way(memory, access));
    const bool others_may = registration.status() == Status::rail_failed ||
                            (registration.status() == Status::unsupported && access.device >= 0);
    if (registration) {
      region->registrations_.push_back(*registration);
    } else if (others_may && ++dead < rails.size()) {
      region->registrations_.emplace_back();
      rail = nullptr;
    } else {
      return std::move(registration.error());  // the region takes back what it has
    }
  }
  if (log_enabled(LogLevel::debug))
    log_debug("memory registered: {} bytes of {} at {}, on {} of {} rails", memory.size(), location_name(access.device),
              fmt::ptr(memory.data()), rails.size() - dead, rails.size());
  return region;
}

}  // namespace railyard::memory
