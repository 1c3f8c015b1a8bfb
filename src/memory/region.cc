#include "memory/region.hpp"

#include <fmt/format.h>

#include <utility>

#include "memory/location.hpp"

namespace railyard::memory {

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
    if (access.device >= 0 && !rail->capabilities().device_memory) {
      if (++dead == rails.size())
        return Error(Status::unsupported, fmt::format("{} bytes of GPU {}: no rail here reaches the memory of GPUs",
                                                      memory.size(), access.device));
      region->registrations_.emplace_back();
      rail = nullptr;
      continue;
    }
    auto registration = rail->register_memory(memory, access);
    if (registration) {
      region->registrations_.push_back(*registration);
    } else if (registration.status() == Status::rail_failed && ++dead < rails.size()) {
      region->registrations_.emplace_back();
      rail = nullptr;
    } else {
      return std::move(registration.error());  // the region takes back what it has
    }
  }
  return region;
}

}  // namespace railyard::memory
