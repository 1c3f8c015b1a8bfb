#include "transport/flow_table.hpp"

#include <fmt/format.h>

namespace railyard::transport {

Result<std::uint16_t> FlowTable::reserve() {
  if (ids_made_ < flows_.size()) return static_cast<std::uint16_t>(ids_made_++);
  if (free_ids_.empty()) {
    return Error(Status::no_memory,
                 fmt::format("{} channels are open: that is as many as there can be", flows_.size()));
  }
  const std::uint16_t id = free_ids_.front();
  free_ids_.pop_front();
  return id;
}

Flow* FlowTable::add(std::unique_ptr<Flow> flow) {
  Flow* const added = flow.get();
  storage_.push_back(std::move(flow));
  // Release: pairs with `find`.
  flows_[added->id].store(added, std::memory_order_release);
  return added;
}

}  // namespace railyard::transport
