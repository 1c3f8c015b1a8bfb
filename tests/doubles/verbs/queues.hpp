/// The rings of the double: what a post writes and a poll reads, without a lock; the network takes part under its own.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace railyard::verbs_double {

inline constexpr std::size_t kEntryBytes = 64;

/// An entry of a send queue. Inline bytes follow it.
struct WorkRequest {
  std::uint8_t opcode;  ///< ibv_wr_opcode
  std::uint8_t flags;   ///< ibv_send_flags
  std::uint16_t unused;
  std::uint32_t length;
  __be32 immediate;
  std::uint32_t lkey;
  std::uint64_t address;
  std::uint64_t remote_address;  ///< a datagram's: its address handle
  std::uint64_t compare_add;     ///< a datagram's: its queue key
  std::uint64_t swap;
  std::uint32_t rkey;  ///< a datagram's: the pair it goes to
  std::uint32_t unused_too;
  std::uint64_t id;

  std::byte* inline_bytes() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(WorkRequest) == kEntryBytes);

template <typename Entry>
struct FreeAligned {
  void operator()(Entry* memory) const { ::operator delete[](memory, std::align_val_t{kEntryBytes}); }
};

class SendQueue {
 public:
  void open(std::uint32_t depth, std::uint32_t inline_bytes) {
    const std::size_t tail = (inline_bytes + kEntryBytes - 1) / kEntryBytes * kEntryBytes;
    stride_ = kEntryBytes + tail;
    const std::uint32_t entries = std::bit_ceil(depth == 0 ? 1 : depth);
    memory_.reset(static_cast<std::byte*>(::operator new[](entries* stride_, std::align_val_t{kEntryBytes})));
    mask_ = entries - 1;
    this->depth = depth;
    this->inline_limit = inline_bytes;
  }
  WorkRequest* at(std::uint32_t index) {
    return reinterpret_cast<WorkRequest*>(memory_.get() + (index & mask_) * stride_);
  }
  void release() { memory_.reset(); }

  std::uint32_t depth = 0;
  std::uint32_t inline_limit = 0;
  std::uint32_t head = 0;                 ///< the poster's own
  std::atomic<std::uint32_t> doorbell{};  ///< publishes entries up to here to the network
  std::atomic<std::uint32_t> retired{};   ///< the poller gives entries before it back to the poster
  // The network's own, in this order: retired <= acknowledged <= executed <= doorbell.
  std::uint32_t executed = 0;
  std::uint32_t acknowledged = 0;

 private:
  std::unique_ptr<std::byte[], FreeAligned<std::byte>> memory_;
  std::size_t stride_ = 0;
  std::uint32_t mask_ = 0;
};

struct ReceiveRequest {
  std::uint64_t id;
  std::uint64_t address;
  std::uint32_t length;
  std::uint32_t lkey;
};

/// A pair's own or a shared one.
class ReceiveQueue {
 public:
  void open(std::uint32_t depth) {
    const std::uint32_t entries = std::bit_ceil(depth == 0 ? 1 : depth);
    memory_ = std::make_unique<ReceiveRequest[]>(entries);
    mask_ = entries - 1;
    this->depth = depth;
  }
  ReceiveRequest* at(std::uint32_t index) { return &memory_[index & mask_]; }
  /// The network's: the oldest receive not yet taken, or null.
  ReceiveRequest* oldest() { return taken == doorbell.load(std::memory_order_acquire) ? nullptr : at(taken); }
  void release() { memory_.reset(); }

  std::uint32_t depth = 0;
  std::uint32_t head = 0;                 ///< the poster's own
  std::atomic<std::uint32_t> doorbell{};  ///< publishes entries up to here to the network
  std::atomic<std::uint32_t> polled{};    ///< how many have come back with a completion
  std::uint32_t taken = 0;                ///< the network's own

 private:
  std::unique_ptr<ReceiveRequest[]> memory_;
  std::uint32_t mask_ = 0;
};

struct Completion {
  std::uint64_t id;
  std::uint32_t bytes;
  __be32 immediate;
  std::uint32_t qp_num;
  std::uint32_t source_qp;
  std::uint32_t retires;  ///< a send's: the queue is free up to here
  std::uint16_t source_lid;
  std::uint8_t status;  ///< ibv_wc_status
  std::uint8_t opcode;  ///< ibv_wc_opcode
  std::uint32_t flags;  ///< ibv_wc_flags
  SendQueue* sends;     ///< one of the two is null
  ReceiveQueue* receives;
};

/// An entry of a completion queue.
struct alignas(kEntryBytes) CompletionEntry {
  std::atomic<std::uint32_t> turn{};  ///< one more than its index once it is written: publishes the rest
  bool removed = false;
  Completion completion{};
};
static_assert(sizeof(CompletionEntry) == kEntryBytes);

class CompletionRing {
 public:
  void open(std::uint32_t depth) {
    const std::uint32_t entries = std::bit_ceil(depth == 0 ? 1 : depth);
    memory_ = std::make_unique<CompletionEntry[]>(entries);
    mask_ = entries - 1;
    this->depth = depth;
  }
  CompletionEntry& at(std::uint32_t index) { return memory_[index & mask_]; }
  void release() { memory_.reset(); }

  std::uint32_t depth = 0;
  std::atomic<std::uint32_t> consumer{};  ///< the poller gives entries before it back to the network
  std::uint32_t producer = 0;             ///< the network's own

 private:
  std::unique_ptr<CompletionEntry[]> memory_;
  std::uint32_t mask_ = 0;
};

}  // namespace railyard::verbs_double
