#include "message/regions.hpp"

#include <cstring>

#include "message/wire.hpp"

namespace railyard::message {

bool PeerRegions::announce(std::uint32_t id, std::uint64_t bytes, std::span<const std::byte> body, std::size_t rails) {
  if (id == 0 || regions_.contains(id) || regions_.size() >= kMostRegions) return false;
  if (body.size() != rails * sizeof(transport::RemoteKey)) return false;
  auto region = std::make_shared<PeerRegion>();
  region->bytes = bytes;
  region->keys.resize(rails);
  if (!body.empty()) std::memcpy(region->keys.data(), body.data(), body.size());
  regions_.emplace(id, std::move(region));
  return true;
}

std::uint32_t OwnRegions::take(const std::shared_ptr<memory::Region>& region) {
  auto [known, fresh] = ids_.try_emplace(region.get(), 0);
  if (fresh) {
    // Ids go round: one that is in use is passed over.
    do ++last_;
    while (last_ == 0 || entries_.contains(last_));
    known->second = last_;
    entries_.emplace(last_, Entry{region, false, 0});
  }
  ++entries_.at(known->second).users;
  return known->second;
}

bool OwnRegions::too_many() const { return entries_.size() > kMostRegions; }

bool OwnRegions::drop(std::uint32_t id) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end() || --entry->second.users != 0) return false;
  ids_.erase(entry->second.region.get());
  entry->second.region.reset();
  return true;
}

void OwnRegions::erase(std::uint32_t id) { entries_.erase(id); }

}  // namespace railyard::message
