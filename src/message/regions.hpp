/// The memory that the two ends of a channel have told each other of.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "memory/region.hpp"
#include "transport/engine.hpp"

namespace railyard::message {

/// What a peer announced: where it lies on each of the peer's rails.
struct PeerRegion {
  std::uint64_t bytes = 0;
  std::vector<transport::RemoteKey> keys;
};

class PeerRegions {
 public:
  /// False: malformed, or more than a peer may have.
  bool announce(std::uint32_t id, std::uint64_t bytes, std::span<const std::byte> body, std::size_t rails);
  void withdraw(std::uint32_t id) { regions_.erase(id); }
  std::shared_ptr<const PeerRegion> find(std::uint32_t id) const {
    const auto found = regions_.find(id);
    return found == regions_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::uint32_t, std::shared_ptr<const PeerRegion>> regions_;
};

/// Our own regions that the peer may be told of. An id is used again only after it has gone all the way round.
class OwnRegions {
 public:
  /// `last`: the id before the first one.
  explicit OwnRegions(std::uint32_t last = 0) : last_(last) {}
  struct Entry {
    std::shared_ptr<memory::Region> region;
    bool announced = false;
    std::uint32_t users = 0;  ///< receives that wait for a message into it, and registrations that the user holds
  };

  /// The id of a region, which is new where it was not known; each `take` wants a `drop`.
  std::uint32_t take(const std::shared_ptr<memory::Region>& region);
  Entry& at(std::uint32_t id) { return entries_.at(id); }
  /// More than a peer keeps, were it told of all: some are not in use.
  bool too_many() const;
  /// True: nobody uses it any more; the peer, if it was told, is to be told so. The region is not kept for that.
  bool drop(std::uint32_t id);
  bool unused(std::uint32_t id) const {
    const auto entry = entries_.find(id);
    return entry != entries_.end() && entry->second.users == 0;
  }
  void erase(std::uint32_t id);
  void clear() {
    entries_.clear();
    ids_.clear();
  }

 private:
  std::uint32_t last_;
  std::map<std::uint32_t, Entry> entries_;
  std::map<const memory::Region*, std::uint32_t> ids_;
};

}  // namespace railyard::message
