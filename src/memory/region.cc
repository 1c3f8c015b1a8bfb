#include "memory/region.hpp"

#include <utility>

namespace railyard::memory {

Region::Region(std::span<fabric::Rail* const> rails, std::span<std::byte> memory)
    : memory_(memory), rails_(rails.begin(), rails.end()) {
  registrations_.reserve(rails_.size());
}

Region::~Region() { revoke(); }

void Region::revoke() {
  if (std::exchange(revoked_, true)) return;
  for (std::size_t i = 0; i < registrations_.size(); ++i)
    settled_ ? rails_[i]->deregister(registrations_[i]) : rails_[i]->revoke(registrations_[i]);
}

Result<std::shared_ptr<Region>> Region::open(std::span<fabric::Rail* const> rails, std::span<std::byte> memory,
                                             fabric::Access access) {
  std::shared_ptr<Region> region(new Region(rails, memory));
  for (fabric::Rail* rail : rails) {
    auto registration = rail->register_memory(memory, access);
    if (!registration) return std::move(registration.error());  // the region takes back what it has
    region->registrations_.push_back(*registration);
  }
  return region;
}

}  // namespace railyard::memory
