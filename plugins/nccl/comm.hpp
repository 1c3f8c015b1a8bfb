/// Comms: what NCCL holds of a listener, and of a channel at its sending or receiving end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "abi.h"
#include "plugin.hpp"
#include "railyard/channel.hpp"
#include "request.hpp"

namespace railyard::nccl {

/// NCCL hands comms over as void*. The kind comes first in all of them, so that one in the wrong place is seen.
struct Comm {
  enum class Kind : std::uint32_t {
    listener = 0x4c595952,
    sender = 0x53595952,
    receiver = 0x52595952,
    group_listener = 0x4b595952,
    group = 0x47595952,
    group_memory = 0x4d595952,
    group_context = 0x43595952,
  };
  Kind kind;
};

struct ListenComm : Comm {
  ListenComm(Hold held, std::unique_ptr<Listener> made)
      : Comm{Kind::listener}, hold(std::move(held)), listener(std::move(made)) {}

  Hold hold;
  std::unique_ptr<Listener> listener;  ///< ends before the hold
};

class ChannelComm : public Comm {
 public:
  ChannelComm(Kind kind, Hold hold, std::unique_ptr<Channel> channel, nccl_profiler profiler);
  /// Gives up what is under way, then registered memory that NCCL has left here.
  ~ChannelComm();
  ChannelComm(const ChannelComm&) = delete;
  ChannelComm& operator=(const ChannelComm&) = delete;

  // ---- any thread ----

  bool takes_gpu_memory() const { return hold_.device().takes_gpu_memory(); }
  Result<void*> register_memory(std::span<std::byte> memory, DmaBufRange dma_buf);
  Result<void> deregister_memory(void* memory);

  // ---- one thread at a time ----

  /// Null: try later. `parent` is for the profiler.
  Result<Request*> send(std::span<const std::byte> message, int tag, void* memory, void* parent);
  /// `parents`: one for each slot, or null.
  Result<Request*> receive(std::span<const ReceiveSlot> slots, bool completion_optional, void** parents);
  /// When done the request is gone.
  Result<bool> test(Request* request, std::span<std::uint64_t> sizes);

 private:
  void start_event(NcclRequest& request, std::uint32_t slot, void* parent, int tag, std::size_t bytes) const;
  void stop_events(NcclRequest& request) const;

  Hold hold_;
  std::unique_ptr<Channel> channel_;
  const nccl_profiler profiler_;
  const int device_;
  std::mutex memories_mutex_;  ///< registration runs beside traffic, which does not need it
  std::map<const void*, std::unique_ptr<Memory>> memories_;
};

}  // namespace railyard::nccl
