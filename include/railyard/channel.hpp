/// Channel: a first-in-first-out message stream between two processes. It needs no world, no ranks and no launcher,
/// only a handle that travelled from one process to the other; a context (context.hpp) listens and connects.
///
/// Nothing here blocks but `close`, `wait` and the end of registered memory. A call that cannot go on now answers
/// null: call it again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "railyard/deadline.hpp"
#include "railyard/result.hpp"

namespace railyard {

/// Names a listener to the process that connects to it: plain bytes, to be carried by any means. Whoever holds it may
/// connect, so it is a secret of the job. The connecting side keeps its progress in its copy: pass the same one again
/// until there is a channel.
struct Handle {
  static constexpr std::size_t kBytes = 128;
  alignas(8) std::array<std::byte, kBytes> bytes{};
};

/// A send or a receive under way. Belongs to its channel, from the call that made it until `test` said that it is done.
class Request;

class Channels;
class ChannelState;
class ListenerState;
class MemoryState;

/// Memory registered for the messages of one channel. At its end it deregisters, and returns when nobody can touch the
/// memory any more; messages of it that are under way end the channel.
class Memory {
 public:
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::span<std::byte> bytes() const noexcept;

 private:
  friend class ChannelState;
  explicit Memory(std::unique_ptr<MemoryState> state);
  std::unique_ptr<MemoryState> state_;
};

/// What registered memory is for.
enum class MemoryUse : std::uint8_t {
  any,    ///< messages both ways
  sends,  ///< sources only: no peer gets the right to read or write it
};

/// Where memory of a GPU lies in a dma-buf.
struct DmaBufRange {
  int descriptor = -1;  ///< -1: there is none
  std::uint64_t offset = 0;
};

/// A slot for one message of a grouped receive.
struct ReceiveSlot {
  std::span<std::byte> memory;
  int tag = 0;
  const Memory* registered = nullptr;  ///< what `memory` lies in; null: registered on the way
};

/// What can be seen of a channel.
struct ChannelStatistics {
  std::string peer;           ///< the other process's identity
  std::uint32_t route = 0;    ///< which set of links it uses; those of one number are shared
  std::uint32_t sharers = 0;  ///< channels on them
  bool shares = false;        ///< they may be shared
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t eager_sent = 0;  ///< messages that needed no grant
  std::uint64_t unexpected = 0;  ///< messages that came before their receive
};

class Channel {
 public:
  /// Requests under way at a time, in each direction.
  static constexpr std::size_t kMostRequests = 256;
  /// Messages of one grouped receive.
  static constexpr std::size_t kMostSlots = 8;
  /// Bytes of the caller's own in each request (`user_bytes`).
  static constexpr std::size_t kUserBytes = 80;

  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Any thread may register; sends, receives and tests come from one thread at a time, which may be another.

  /// Memory of the host or of a GPU. `dma_buf`: the caller's descriptor of the latter, for NICs; it may be closed when
  /// this returns, and is not needed.
  Result<std::unique_ptr<Memory>> register_memory(std::span<std::byte> memory, DmaBufRange dma_buf = {},
                                                  MemoryUse use = MemoryUse::any);

  /// Begins to send a message. The bytes stay as they are until the request is done. Null: no request is free.
  Result<Request*> send(std::span<const std::byte> message, int tag, const Memory* registered = nullptr);
  /// Begins to receive as many messages as there are slots, 1 to kMostSlots. A message goes into the oldest receive
  /// that has a free slot of its tag, and never into one of another tag; messages of one tag stay in order.
  /// `completion_optional`: the caller learns by other means when the bytes are there, so the request may be done at
  /// once.
  Result<Request*> receive(std::span<const ReceiveSlot> slots, bool completion_optional = false);
  /// Whether the request is done; moves things on if not. When it answers true the request is gone, and `sizes` has the
  /// bytes of each slot (or of the send). An error ends the channel; where the peer has closed it or is lost, what has
  /// arrived can still be received.
  Result<bool> test(Request* request, std::span<std::uint64_t> sizes = {});
  /// For whoever keeps something with each request: zeroes at first, then what its last user left there. They stay when
  /// `test` answers true, until the next send or receive. On an 8-byte boundary.
  static std::span<std::byte, kUserBytes> user_bytes(Request* request) noexcept;
  /// `test` until it is done.
  Result<void> wait(Request* request, std::span<std::uint64_t> sizes = {}, Deadline deadline = {});

  ChannelStatistics statistics() const;
  /// Requests that are under way are given up; returns when nobody can touch memory of this channel any more. Messages
  /// whose sends were done are delivered all the same.
  void close();

 private:
  friend class Channels;
  explicit Channel(std::shared_ptr<ChannelState> state);
  std::shared_ptr<ChannelState> state_;
};

class Listener {
 public:
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const Handle& handle() const noexcept;
  /// The next channel that was connected to this listener; null: none yet. It outlives the listener.
  Result<std::unique_ptr<Channel>> accept();

 private:
  friend class Channels;
  explicit Listener(std::unique_ptr<ListenerState> state);
  std::unique_ptr<ListenerState> state_;
};

}  // namespace railyard
