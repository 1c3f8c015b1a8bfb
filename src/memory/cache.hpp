/// RegionCache: registers the memory that puts, gets and messages use, and remembers it by page range where it may.
///
/// What it remembers is for this side's own operations: no peer gets a key to it. Memory that a peer is to write to is
/// registered apart by `expose`, exactly as long and as wide as that lasts.
///
/// It may not where a rail pins pages (it needs descriptors of local memory): when a program gives memory back and gets
/// other memory at the same place, a registration that was kept would still lead to the old pages. There a region lives
/// as long as the operations that hold it, but for what was asked to be remembered: whoever does that has promised to
/// have it forgotten before the memory goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "memory/host_ranges.hpp"
#include "memory/location.hpp"
#include "memory/region.hpp"

namespace railyard::memory {

/// Bounded: the least recently used entries leave first. An operation in flight holds its region by reference, so an
/// entry that leaves under it stays registered until the operation is done. The cache's own state may be used by
/// several threads at once; it registers on the rails from within `find`, so a caller that may miss must be the one
/// that may call the rails.
class RegionCache {
 public:
  struct Limits {
    std::size_t entries = 4096;
    std::size_t bytes = std::size_t{64} << 30;
  };
  struct Statistics {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t merged = 0;  ///< entries that a larger one took in
    std::uint64_t evicted = 0;
    std::size_t entries = 0;
    std::size_t bytes = 0;
  };

  /// `access`: how bytes may reach what it registers.
  explicit RegionCache(std::span<fabric::Rail* const> rails, fabric::Access access = {});
  RegionCache(std::span<fabric::Rail* const> rails, Limits limits, fabric::Access access = {});

  /// A region that contains `memory`. A miss checks that the memory is mapped and registers its pages, together with
  /// those of the entries that it overlaps.
  Result<std::shared_ptr<Region>> find(std::span<const std::byte> memory);
  /// The same, kept until it is forgotten (or leaves as the least recently used).
  Result<void> remember(std::span<const std::byte> memory);
  /// A region of exactly these bytes that peers may read and write, for one use: it ends with its last reference, and
  /// is not remembered.
  Result<std::shared_ptr<Region>> expose(std::span<std::byte> memory);
  /// Drops every entry that touches these bytes' pages. Before unmapping memory that was used.
  void forget(std::span<const std::byte> memory);
  Statistics statistics() const;
  /// What was remembered of the host's memory and is not forgotten. Any thread.
  const HostRanges& remembered() const { return remembered_; }

 private:
  using Address = std::uintptr_t;
  struct Entry {
    Address end = 0;
    std::shared_ptr<Region> region;
    std::list<Address>::iterator use;  ///< its place in the order of use
  };
  using Entries = std::map<Address, Entry>;

  Result<std::shared_ptr<Region>> find(std::span<const std::byte> memory, bool keep);
  Result<std::shared_ptr<Region>> find_on_device(std::span<const std::byte> memory,
                                                 const accelerator::Allocation& allocation, bool keep,
                                                 std::vector<std::shared_ptr<Region>>& dropped);
  Result<std::shared_ptr<Region>> add(Address first, Address last, std::vector<std::shared_ptr<Region>>& dropped);
  Result<std::shared_ptr<Region>> register_pages(Address first, Address last);
  Entries::iterator first_touching(Address first);
  void erase(Entries::iterator entry, std::vector<std::shared_ptr<Region>>& dropped);
  void insert(std::shared_ptr<Region> region, std::vector<std::shared_ptr<Region>>& dropped);

  const std::vector<fabric::Rail*> rails_;
  const Limits limits_;
  const fabric::Access access_;
  const bool remembers_;
  mutable std::mutex mutex_;
  HostRanges remembered_;
  Entries entries_;            ///< by first address; never overlapping
  std::list<Address> by_use_;  ///< the most recently used first
  /// Whole allocations of GPUs, the most recently used last. An address says nothing there: another allocation may
  /// have taken it.
  std::vector<std::pair<accelerator::Allocation, std::shared_ptr<Region>>> on_devices_;
  Statistics statistics_;
};

}  // namespace railyard::memory
