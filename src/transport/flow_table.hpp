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
  explicit FlowTable(std::size_t most);
  /// How many there can be.
  std::size_t most() const { return most_; }

  /// Of an id within bounds; null: none. Any thread.
  Flow* find(std::size_t id) const {
    // Acquire: pairs with the store in `add`; the flow is whole when seen.
    return flows_[id].load(std::memory_order_acquire);
  }
  /// The same with the progress lock held.
  Flow* held(std::size_t id) const { return flows_[id].load(std::memory_order_relaxed); }

  /// Ids, one after the other, that no flow has; until they are released nobody else gets them.
  Result<std::uint16_t> reserve(std::size_t count = 1);
  void release(std::uint16_t first, std::size_t count = 1) {
    free_ids_.push_back({first, static_cast<std::uint32_t>(count)});
  }
  Flow* add(std::unique_ptr<Flow> flow);
  /// Nothing that arrives finds it any more.
  void hide(const Flow& flow) { flows_[flow.id].store(nullptr, std::memory_order_release); }
  /// Ends those that `over` says are, and frees their ids; those of a world's flows are free with the world's.
  template <typename Over>
  void remove_if(Over&& over) {
    std::erase_if(storage_, [&](const std::unique_ptr<Flow>& flow) {
      const bool of_world = flow->route->world != nullptr;
      if (!over(*flow)) return false;
      if (!of_world) release(flow->id);
      return true;
    });
  }
  std::span<const std::unique_ptr<Flow>> all() const { return storage_; }

 private:
  void join_free_ids();

  struct Free {
    void operator()(std::atomic<Flow*>* flows) const;
  };
  std::size_t most_;
  std::unique_ptr<std::atomic<Flow*>[], Free> flows_;  ///< pages that no id has touched cost nothing
  std::vector<std::unique_ptr<Flow>> storage_;
  struct Ids {
    std::uint16_t first = 0;
    std::uint32_t count = 0;
  };
  std::deque<Ids> free_ids_;  ///< those that were freed first are used first
  std::uint32_t ids_made_ = 0;
};

}  // namespace railyard::transport
