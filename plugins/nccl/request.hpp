/// Request: what NCCL holds of a send or a receive under way, and the profiler's events that belong to it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "abi.h"
#include "railyard/channel.hpp"

namespace railyard::nccl {

class ChannelComm;

/// What a profiler is told of one message; good during the call only. Part of the manual page nccl-railyard(7).
struct MessageDescriptor {
  std::int32_t device;
  std::int32_t direction;  ///< 0: sent, 1: received
  std::int32_t tag;
  std::int32_t slot;    ///< its slot in a grouped receive
  std::uint64_t bytes;  ///< of a send: its size; of a receive: the room for it
};
static_assert(sizeof(MessageDescriptor) == 24);

/// NCCL keeps 1 and 2 in the upper half for its own transports; the lower half is the version of the descriptor.
inline constexpr std::int64_t kProfilerId = (std::int64_t{0x5259} << 16) | 1;

struct NcclRequest {
  ChannelComm* comm = nullptr;  ///< null: not under way
  railyard::Request* inner = nullptr;
  std::uint32_t messages = 0;
  std::array<void*, Channel::kMostSlots> events{};  ///< null: the profiler wants none
};

/// As many requests as a channel has in one direction. Used by the thread that sends or receives, alone.
class RequestPool {
 public:
  RequestPool() : requests_(Channel::kMostRequests) {
    for (NcclRequest& request : requests_) free_.push_back(&request);
  }
  /// Null: all are under way.
  NcclRequest* take() {
    if (free_.empty()) return nullptr;
    NcclRequest* const request = free_.back();
    free_.pop_back();
    return request;
  }
  void give_back(NcclRequest* request) {
    *request = NcclRequest();
    free_.push_back(request);
  }

 private:
  std::vector<NcclRequest> requests_;
  std::vector<NcclRequest*> free_;
};

}  // namespace railyard::nccl
