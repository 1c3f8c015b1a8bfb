/// Request: what NCCL holds of a send or a receive under way, and the profiler's events that belong to it.
#pragma once

#include <array>
#include <cstdint>
#include <new>

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

/// Lies in the channel's own request, which is what NCCL holds.
struct NcclRequest {
  ChannelComm* comm = nullptr;  ///< null: not under way
  std::uint32_t messages = 0;
  std::array<void*, Channel::kMostSlots> events{};  ///< null: the profiler wants none

  static NcclRequest& of(railyard::Request* request) {
    return *std::launder(reinterpret_cast<NcclRequest*>(Channel::user_bytes(request).data()));
  }
  static NcclRequest& make(railyard::Request* request, ChannelComm& comm, std::size_t messages) {
    static_assert(sizeof(NcclRequest) <= Channel::kUserBytes && alignof(NcclRequest) <= 8);
    return *::new (static_cast<void*>(Channel::user_bytes(request).data()))
        NcclRequest{&comm, static_cast<std::uint32_t>(messages), {}};
  }
};

}  // namespace railyard::nccl
