/// Requests of one-sided operations: from a pool, and in a list for each rank, oldest first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "railyard/result.hpp"
#include "railyard/window.hpp"

namespace railyard::nccl {

class GroupComm;

struct GroupRequest {
  const GroupComm* group = nullptr;  ///< null: not under way
  int rank = 0;
  bool flush = false;               ///< done when those before it in the list are
  bool complete = false;            ///< seen to be
  bool told = false;                ///< its failure was logged
  std::array<Ticket, 2> tickets{};  ///< a put and its signal; the default one is complete
  Error error;                      ///< it failed
  GroupRequest* older = nullptr;
  GroupRequest* newer = nullptr;
};

/// Grows to what was once under way, block by block, and stays there. One thread at a time.
class GroupRequests {
 public:
  static constexpr std::size_t kBlock = 256;

  void open(std::size_t ranks, std::size_t most) {
    lists_.resize(ranks);
    most_ = most;
  }
  void allow_more(std::size_t count) { most_ += count; }
  std::size_t most() const { return most_; }

  /// At the end of the rank's list; null: all are under way.
  GroupRequest* take(const GroupComm& group, int rank) {
    if (free_ == nullptr && !grow()) return nullptr;
    GroupRequest* const request = free_;
    free_ = request->newer;
    request->group = &group;
    request->rank = rank;
    List& list = lists_[static_cast<std::size_t>(rank)];
    request->newer = nullptr;
    request->older = list.newest;
    (list.newest != nullptr ? list.newest->newer : list.oldest) = request;
    list.newest = request;
    return request;
  }
  void give_back(GroupRequest& request) {
    List& list = lists_[static_cast<std::size_t>(request.rank)];
    (request.older != nullptr ? request.older->newer : list.oldest) = request.newer;
    (request.newer != nullptr ? request.newer->older : list.newest) = request.older;
    request = GroupRequest();
    request.newer = free_;
    free_ = &request;
  }

 private:
  struct List {
    GroupRequest* oldest = nullptr;
    GroupRequest* newest = nullptr;
  };

  bool grow() {
    if (blocks_.size() * kBlock >= most_) return false;
    blocks_.push_back(std::make_unique<std::array<GroupRequest, kBlock>>());
    for (GroupRequest& request : *blocks_.back()) {
      request.newer = free_;
      free_ = &request;
    }
    return true;
  }

  std::vector<std::unique_ptr<std::array<GroupRequest, kBlock>>> blocks_;
  GroupRequest* free_ = nullptr;
  std::vector<List> lists_;  ///< by rank
  std::size_t most_ = 0;
};

}  // namespace railyard::nccl
