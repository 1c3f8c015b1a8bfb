#include "transport/flow_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace railyard::transport {

FlowTable::FlowTable(std::size_t most) : most_(most) {
  // The system's zeroes are null pointers, as for every object of static storage here.
  static_assert(std::atomic<Flow*>::is_always_lock_free);
  using Entry = std::atomic<Flow*>;
  void* const zeroed = std::calloc(most, sizeof(Entry));
  if (zeroed == nullptr) throw std::bad_alloc();
  flows_.reset(static_cast<Entry*>(zeroed));
}

void FlowTable::Free::operator()(std::atomic<Flow*>* flows) const { std::free(flows); }

Result<std::uint16_t> FlowTable::reserve(std::size_t count) {
  const auto ids = static_cast<std::uint32_t>(count);
  if (ids <= most_ - ids_made_) return static_cast<std::uint16_t>(std::exchange(ids_made_, ids_made_ + ids));
  const auto enough = [ids](const Ids& free) { return free.count >= ids; };
  auto found = std::ranges::find_if(free_ids_, enough);
  if (found == free_ids_.end()) {
    join_free_ids();
    found = std::ranges::find_if(free_ids_, enough);
  }
  if (found == free_ids_.end()) {
    return Error(Status::no_memory,
                 fmt::format("no room for {} more flows: channels and the ranks of worlds have {} of "
                             "one engine at most",
                             count, most_));
  }
  const std::uint16_t first = found->first;
  found->first = static_cast<std::uint16_t>(first + ids);
  found->count -= ids;
  if (found->count == 0) free_ids_.erase(found);
  return first;
}

void FlowTable::join_free_ids() {
  std::ranges::sort(free_ids_, {}, &Ids::first);
  std::deque<Ids> joined;
  for (const Ids& each : free_ids_) {
    if (!joined.empty() && joined.back().first + joined.back().count == each.first) {
      joined.back().count += each.count;
    } else {
      joined.push_back(each);
    }
  }
  free_ids_ = std::move(joined);
}

Flow* FlowTable::add(std::unique_ptr<Flow> flow) {
  Flow* const added = flow.get();
  storage_.push_back(std::move(flow));
  // Release: pairs with `find`.
  flows_[added->id].store(added, std::memory_order_release);
  return added;
}

}  // namespace railyard::transport
