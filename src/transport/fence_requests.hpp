/// FenceRequests: peers that have lost a link ask this side, which is its target, to shut it out, and to say what has
/// arrived over it by then. Answered once nothing more can land: what the answer lacks, the peer sends again.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/core.hpp"
#include "transport/flow.hpp"
#include "transport/reports.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

class FenceRequests {
 public:
  FenceRequests(Core& core, Reports& reports) : core_(core), reports_(reports) {}

  /// The peer asks, for one of its flows, or asks again. `ends.remote_rail` is one of ours.
  void add(Flow& flow, wire::LinkEnds ends, std::uint32_t epoch);
  bool any() const { return !requests_.empty(); }
  bool any(const Route& route) const;
  /// Answers what can be. Whether anything was.
  bool answer();
  /// The flow goes.
  void forget(const Flow& flow) {
    std::erase_if(requests_, [&flow](const Request& request) { return request.flow == &flow; });
  }

 private:
  struct Request {
    Flow* flow = nullptr;
    wire::LinkEnds ends;
    std::uint32_t epoch = 0;
    std::int64_t not_before = 0;
  };
  bool answer(const Request& request);

  Core& core_;
  Reports& reports_;
  std::vector<Request> requests_;
};

}  // namespace railyard::transport
