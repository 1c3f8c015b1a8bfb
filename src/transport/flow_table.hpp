/// FlowTable: the flows of an engine, by the id that peers put into their frames. Ids are used again as late as can be.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "railyard/result.hpp"
#include "transport/flow.hpp"

namespace railyard::transport {

class FlowTable {
 public:
  explicit FlowTable(std::size_t most) : flows_(most) {}
  /// How many there can be.
  std::size_t most() const { return flows_.size(); }

  /// Of an id within bounds; null: none. Any thread.
  Flow* find(std::size_t id) const {
    // Acquire: pairs with the store in `add`; the flow is whole when seen.
    return flows_[id].load(std::memory_order_acquire);
  }
  /// The same with the progress lock held.
  Flow* held(std::size_t id) const { return flows_[id].load(std::memory_order_relaxed); }

  /// An id that no flow has; until it is released nobody else gets it.
  Result<std::uint16_t> reserve();
  void release(std::uint16_t id) { free_ids_.push_back(id); }
  Flow* add(std::unique_ptr<Flow> flow);
  /// Nothing that arrives finds it any more.
  void hide(const Flow& flow) { flows_[flow.id].store(nullptr, std::memory_order_release); }
  /// Ends those that `over` says are, and frees their ids.
  template <typename Over>
  void remove_if(Over&& over) {
    std::erase_if(storage_, [&](const std::unique_ptr<Flow>& flow) {
      if (!over(*flow)) return false;
      release(flow->id);
      return true;
    });
  }
  std::span<const std::unique_ptr<Flow>> all() const { return storage_; }

 private:
  std::vector<std::atomic<Flow*>> flows_;
  std::vector<std::unique_ptr<Flow>> storage_;
  std::deque<std::uint16_t> free_ids_;  ///< the one that was freed first is used first
  std::uint32_t ids_made_ = 0;
};

}  // namespace railyard::transport
