/// RequestPool: the requests of one direction of a channel. The user's thread alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "message/request.hpp"

namespace railyard::message {

/// The request that was given back last is taken first: its lines are still in the cache.
class RequestPool {
 public:
  explicit RequestPool(bool sends) : sends_(sends) {}

  /// Null: as many as there may be are under way. One that the engine's side still uses (`kept`) is passed over.
  Request* take() {
    if (!free_.empty() && bring_to_end()) {
      Request* const request = free_.back();
      free_.pop_back();
      return request;
    }
    if (requests_.size() == Channel::kMostRequests) return nullptr;
    auto& request = requests_.emplace_back(std::make_unique<Request>());
    request->sends = sends_;
    request->index = static_cast<std::uint32_t>(requests_.size() - 1);
    free_.reserve(requests_.size());
    return request.get();
  }
  void give_back(Request* request) {
    request->state.store(Request::State::free, std::memory_order_relaxed);
    free_.push_back(request);
  }

 private:
  /// The last one, or else the first that the engine's side is done with: the oldest are the likeliest.
  bool bring_to_end() {
    const auto usable = [](const Request* each) { return !each->kept.load(std::memory_order_acquire); };
    if (usable(free_.back())) return true;
    const auto found = std::ranges::find_if(free_, usable);
    if (found == free_.end()) return false;
    std::swap(*found, free_.back());
    return true;
  }

  const bool sends_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> free_;
};

}  // namespace railyard::message
