/// What NCCL holds for one-sided operations (its GIN and RMA tables): a group of ranks, memory that all of them have
/// registered, and requests. A group is a World, registered memory a Window over it; an operation is one or two calls
/// of that window. Order, signals, rails that fail: all of it is the library's, none of it is here.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "abi_gin.h"
#include "comm.hpp"
#include "gin_request.hpp"
#include "message/handle_world.hpp"
#include "railyard/window.hpp"
#include "railyard/world.hpp"

namespace railyard::nccl {

struct GroupListenComm : Comm {
  GroupListenComm(Hold on, message::HandleListener made)
      : Comm{Kind::group_listener}, hold(std::move(on)), listener(std::move(made)) {}

  Hold hold;
  std::optional<message::HandleListener> listener;  ///< none: a connect has used it up
};

class GroupComm;

/// What all ranks registered together. NCCL hands it back as a pointer of 63 bits.
class GroupMemory : public Comm {
 public:
  GroupMemory(GroupComm& group, std::span<std::byte> memory, Window window)
      : Comm{Kind::group_memory}, group_(group), memory_(memory), window_(std::move(window)) {}

  GroupComm& group() const { return group_; }
  std::span<std::byte> memory() const { return memory_; }
  Window& window() { return window_; }

 private:
  GroupComm& group_;
  std::span<std::byte> memory_;
  Window window_;
};

/// Bytes of registered memory; null: none.
struct MemoryRange {
  GroupMemory* memory = nullptr;
  std::uint64_t offset = 0;
};

/// The change of a signal: 8 bytes, added to.
struct WordAdd {
  MemoryRange at;
  std::uint64_t value = 1;
};

class GroupComm : public Comm {
 public:
  /// Requests that NCCL may have under way to one rank: its queues are as long.
  static constexpr std::size_t kRequestsPerRank = std::size_t{NCCL_MOST_REQUESTS} * Channel::kMostSlots;

  /// Collective: returns when all ranks are connected.
  static Result<std::unique_ptr<GroupComm>> open(Hold hold, message::HandleListener listener, const Handle& first,
                                                 int rank, int size);
  /// Not collective. Gives up what is under way, then memory that NCCL has left here.
  ~GroupComm();
  GroupComm(const GroupComm&) = delete;
  GroupComm& operator=(const GroupComm&) = delete;

  // ---- any thread ----

  /// Collective, in the same order on all ranks. `on_device`: NCCL says that it is memory of a GPU.
  Result<GroupMemory*> register_memory(std::span<std::byte> memory, bool on_device);
  /// Not collective. When it returns nobody touches the memory any more.
  Result<void> deregister_memory(GroupMemory& memory);
  /// NCCL has this many more queues to each rank.
  void add_contexts(std::size_t count);
  void progress() { world_->progress(); }
  int size() const { return world_->size(); }
  /// Whether an operation has failed.
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // ---- the thread of NCCL's queues. Operations to one rank take effect in the order of these calls. ----

  /// A put where `bytes` is not 0, and after it, and after all earlier operations to that rank, an add where there is
  /// one. With all queues full it waits for room.
  Result<GroupRequest*> put(int rank, MemoryRange from, std::size_t bytes, MemoryRange to, const WordAdd* signal);
  Result<GroupRequest*> get(int rank, MemoryRange from, std::size_t bytes, MemoryRange to);
  /// Done when all that was asked of that rank before is: gets then are visible to everybody, GPUs too.
  Result<GroupRequest*> flush(int rank);
  /// When done the request is gone. One that failed stays, and says so every time: NCCL 2.28 goes on asking.
  Result<bool> test(GroupRequest& request);
  bool owns(const GroupRequest& request) const { return request.group == this; }

 private:
  explicit GroupComm(Hold hold) : Comm{Kind::group}, hold_(std::move(hold)) {}

  Result<GroupRequest*> take_request(int rank);
  Result<bool> look(GroupRequest& request);
  Error fail(Error error);

  Hold hold_;  ///< the context that its world shares with those of other comms
  message::HandleWorld ranks_;
  std::optional<World> world_;
  alignas(64) std::array<std::byte, 64> anchor_memory_{};
  std::optional<Window> anchor_;  ///< asks for tickets of windows that may have ended
  std::mutex collective_mutex_;   ///< held while all ranks meet
  std::mutex memories_mutex_;
  std::map<const void*, std::unique_ptr<GroupMemory>> memories_;
  std::mutex requests_mutex_;
  GroupRequests requests_;
  std::atomic<bool> failed_{false};  ///< publishes error_
  Error error_;                      ///< the first
};

/// One createContext: so many independent queues. All of them share the group's one sequence to each rank, which is
/// more order than NCCL asks for.
struct GroupContext : Comm {
  GroupContext(GroupComm& of, int count) : Comm{Kind::group_context}, group(of), contexts(count) {}
  GroupComm& group;
  int contexts;
};

}  // namespace railyard::nccl
