#include "memory/cache.hpp"

#include <algorithm>
#include <utility>

#include "memory/mapped.hpp"

namespace railyard::memory {

namespace {

/// Allocations of GPUs that are remembered.
constexpr std::size_t kMostOnDevices = 256;

std::uintptr_t page_of(std::uintptr_t address) { return address & ~(std::uintptr_t{page_bytes()} - 1); }

std::span<std::byte> bytes_between(std::uintptr_t first, std::uintptr_t last) {
  return {reinterpret_cast<std::byte*>(first), last - first};
}

}  // namespace

RegionCache::RegionCache(std::span<fabric::Rail* const> rails, fabric::Access access)
    : RegionCache(rails, Limits{}, access) {}

RegionCache::RegionCache(std::span<fabric::Rail* const> rails, Limits limits, fabric::Access access)
    : rails_(rails.begin(), rails.end()),
      limits_(limits),
      access_{.remote = false, .bulk = access.bulk},
      remembers_(std::ranges::none_of(
          rails, [](const fabric::Rail* rail) { return rail->capabilities().needs_local_registration; })) {}

Result<std::shared_ptr<Region>> RegionCache::find(std::span<const std::byte> memory) {
  return find(memory, remembers_);
}

Result<std::shared_ptr<Region>> RegionCache::expose(std::span<std::byte> memory) {
  if (auto usable = check_usable(memory); !usable) return std::move(usable.error());
  auto region = Region::open(rails_, memory, {.remote = true, .bulk = access_.bulk});
  if (region) (*region)->single_use_ = true;
  return region;
}

Result<void> RegionCache::remember(std::span<const std::byte> memory) {
  auto region = find(memory, true);
  if (!region) return std::move(region.error());
  if ((*region)->device() < 0) {
    const std::lock_guard lock(mutex_);
    remembered_.add(memory);
  }
  return {};
}

Result<std::shared_ptr<Region>> RegionCache::find(std::span<const std::byte> memory, bool keep) {
  const auto begin = reinterpret_cast<Address>(memory.data());
  const Address end = begin + memory.size();
  // What leaves the cache is let go after the lock: closing a registration takes its time.
  std::vector<std::shared_ptr<Region>> dropped;
  const std::lock_guard lock(mutex_);
  const bool known = !memory.empty() && remembered_.hold(memory.data(), memory.size());
  if (const auto device = known ? std::nullopt : find_device(memory.data()))
    return find_on_device(memory, *device, keep, dropped);
  auto entry = entries_.upper_bound(begin);
  if (entry != entries_.begin() && !memory.empty() && end > begin) {
    --entry;
    if (end <= entry->second.end) {
      ++statistics_.hits;
      by_use_.splice(by_use_.begin(), by_use_, entry->second.use);
      return entry->second.region;
    }
  }
  // Before anything is touched: a bad request must not cost the entries that it seems to overlap.
  if (auto mapped = check_mapped(memory); !mapped) return std::move(mapped.error());
  ++statistics_.misses;
  if (!keep) return register_pages(page_of(begin), page_of(end - 1) + page_bytes());
  return add(page_of(begin), page_of(end - 1) + page_bytes(), dropped);
}

Result<std::shared_ptr<Region>> RegionCache::find_on_device(std::span<const std::byte> memory,
                                                            const accelerator::Allocation& allocation, bool keep,
                                                            std::vector<std::shared_ptr<Region>>& dropped) {
  if (auto usable = check_usable(memory); !usable) return std::move(usable.error());
  const auto same = [&](const auto& entry) { return entry.first.id == allocation.id; };
  if (auto known = std::ranges::find_if(on_devices_, same); known != on_devices_.end()) {
    ++statistics_.hits;
    std::rotate(known, known + 1, on_devices_.end());
    return on_devices_.back().second;
  }
  ++statistics_.misses;
  // A registration that is kept would keep the GPU's memory too, after its program has freed it.
  if (!keep) return Region::open(rails_, {const_cast<std::byte*>(memory.data()), memory.size()}, access_);
  // What lay there before is gone.
  std::erase_if(on_devices_, [&](auto& entry) {
    if (entry.first.base >= allocation.base + allocation.bytes ||
        allocation.base >= entry.first.base + entry.first.bytes)
      return false;
    dropped.push_back(std::move(entry.second));
    return true;
  });
  auto region = Region::open(rails_, bytes_between(allocation.base, allocation.base + allocation.bytes), access_);
  if (!region) return region;
  if (on_devices_.size() == kMostOnDevices) {
    dropped.push_back(std::move(on_devices_.front().second));
    on_devices_.erase(on_devices_.begin());
  }
  on_devices_.emplace_back(allocation, *region);
  return region;
}

/// Registers the pages from `first` to `last`, with the entries that they overlap where that still works.
Result<std::shared_ptr<Region>> RegionCache::add(Address first, Address last,
                                                 std::vector<std::shared_ptr<Region>>& dropped) {
  Address union_first = first;
  Address union_last = last;
  for (auto entry = first_touching(first); entry != entries_.end() && entry->first < last;) {
    union_first = std::min(union_first, entry->first);
    union_last = std::max(union_last, entry->second.end);
    ++statistics_.merged;
    erase(entry++, dropped);
  }
  const bool larger = union_first != first || union_last != last;
  // An old entry's memory may be gone by now, and then the union cannot be had: the request can stand alone.
  auto region = larger && !check_mapped(bytes_between(union_first, union_last))
                    ? register_pages(first, last)
                    : register_pages(union_first, union_last);
  if (!region && larger) region = register_pages(first, last);
  if (region) insert(*region, dropped);
  return region;
}

Result<std::shared_ptr<Region>> RegionCache::register_pages(Address first, Address last) {
  return Region::open(rails_, bytes_between(first, last), access_);
}

/// The first entry that ends after `first`.
RegionCache::Entries::iterator RegionCache::first_touching(Address first) {
  auto entry = entries_.upper_bound(first);
  if (entry != entries_.begin() && std::prev(entry)->second.end > first) --entry;
  return entry;
}

void RegionCache::erase(Entries::iterator entry, std::vector<std::shared_ptr<Region>>& dropped) {
  statistics_.bytes -= entry->second.end - entry->first;
  --statistics_.entries;
  by_use_.erase(entry->second.use);
  dropped.push_back(std::move(entry->second.region));
  entries_.erase(entry);
}

void RegionCache::insert(std::shared_ptr<Region> region, std::vector<std::shared_ptr<Region>>& dropped) {
  const auto first = reinterpret_cast<Address>(region->memory().data());
  const std::size_t bytes = region->memory().size();
  by_use_.push_front(first);
  entries_.emplace(first, Entry{first + bytes, std::move(region), by_use_.begin()});
  statistics_.bytes += bytes;
  ++statistics_.entries;
  // The newest stays even where it alone is over the bound: its caller is about to use it.
  while (statistics_.entries > 1 && (statistics_.entries > limits_.entries || statistics_.bytes > limits_.bytes)) {
    ++statistics_.evicted;
    erase(entries_.find(by_use_.back()), dropped);
  }
}

void RegionCache::forget(std::span<const std::byte> memory) {
  if (memory.empty()) return;
  const auto begin = reinterpret_cast<Address>(memory.data());
  const Address last = page_of(begin + memory.size() - 1) + page_bytes();
  std::vector<std::shared_ptr<Region>> dropped;
  const std::lock_guard lock(mutex_);
  remembered_.remove(memory);
  for (auto entry = first_touching(page_of(begin)); entry != entries_.end() && entry->first < last;)
    erase(entry++, dropped);
  std::erase_if(on_devices_, [&](auto& entry) {
    if (begin >= entry.first.base + entry.first.bytes || entry.first.base >= begin + memory.size()) return false;
    dropped.push_back(std::move(entry.second));
    return true;
  });
}

RegionCache::Statistics RegionCache::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

}  // namespace railyard::memory
