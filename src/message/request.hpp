/// Request: one send or one receive of a channel, from the user's call to the user's `test`.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "memory/region.hpp"
#include "railyard/channel.hpp"
#include "transport/engine_trace.hpp"

namespace railyard {

/// Filled by the user's thread, worked on by whoever holds the progress lock, given back to the user's thread by
/// `state`.
class Request {
 public:
  enum class State : std::uint8_t { free, posted, done, failed };

  /// Release: the bytes of the message, or that its source is free, go with it. Acquire in `finished`.
  void finish() {
    if (trace != nullptr) [[unlikely]]
      end_trace(false);
    state.store(State::done, std::memory_order_release);
  }
  bool finished() const { return state.load(std::memory_order_acquire) == State::done; }
  /// It will never be done; its channel says why. What the user was told is done stays so.
  void fail() {
    State expected = State::posted;
    if (trace != nullptr && state.load(std::memory_order_relaxed) == expected) [[unlikely]]
      end_trace(true);
    state.compare_exchange_strong(expected, State::failed, std::memory_order_release, std::memory_order_relaxed);
  }
  enum class Verdict : std::uint8_t { pending, done, lost };
  /// What the user is told. `lost` says whether it can never be done, as far as the channel knows. Done is looked at
  /// again after that: the last message and the end of the channel may both arrive in between, in this order.
  template <typename Lost>
  Verdict verdict(Lost&& lost) const {
    if (finished()) return Verdict::done;
    if (!lost()) return Verdict::pending;
    return finished() ? Verdict::done : Verdict::lost;
  }
  bool has_failed() const { return state.load(std::memory_order_acquire) == State::failed; }
  void forget_memory() {
    region.reset();
    for (Slot& target : slots) target.region.reset();
  }

  /// Bytes that it moves, or that there is room for.
  std::uint64_t bytes() const {
    std::uint64_t sum = message.size();
    for (std::size_t slot = 0; !sends && slot < count; ++slot) sum += slots[slot].memory.size();
    return sum;
  }

  std::atomic<State> state{State::free};
  /// The engine's side still uses it although the user was told that it is done.
  std::atomic<bool> kept{false};
  bool sends = false;
  bool completion_optional = false;
  std::uint8_t count = 1;  ///< slots

  const transport::EngineTrace* trace = nullptr;  ///< null: it is not traced
  std::int64_t traced_since = 0;

  // The user's thread alone.
  alignas(8) std::array<std::byte, Channel::kUserBytes> user_bytes{};
  bool told = false;        ///< that it takes long
  std::uint32_t tests = 0;  ///< that found it pending
  std::int64_t pending_since = 0;

  // A send.
  std::span<const std::byte> message;
  int tag = 0;
  std::shared_ptr<memory::Region> region;  ///< what the message lies in
  std::uint64_t started = 0;               ///< bytes that went out eagerly so far
  std::uint64_t operation = 0;             ///< the flow's operation that ends it

  // A receive.
  struct Slot {
    std::span<std::byte> memory;
    int tag = 0;
    bool taken = false;                      ///< a message is in it or on its way there
    std::shared_ptr<memory::Region> region;  ///< what the memory lies in
    std::uint32_t region_id = 0;             ///< as announced; 0: not registered ahead
  };
  std::array<Slot, Channel::kMostSlots> slots;
  std::uint32_t index = 0;   ///< among the channel's receives
  std::uint32_t group = 0;   ///< what the peer calls it: anew with every use
  std::uint8_t granted = 0;  ///< slots that the peer has been told of
  std::uint8_t unfilled = 0;
  std::uint8_t untaken = 0;
  Request* next_open = nullptr;  ///< the receiver's list of those with a slot that no message has begun to fill
  Request* previous_open = nullptr;

  std::array<std::uint64_t, Channel::kMostSlots> sizes{};

 private:
  void end_trace(bool failed) const {
    std::uint64_t sum = 0;
    for (std::size_t slot = 0; slot < count && !failed; ++slot) sum += sizes[slot];
    trace->message_ended(this, sum, failed);
  }
};

}  // namespace railyard
