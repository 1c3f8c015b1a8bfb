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

namespace railyard {

/// Filled by the user's thread, worked on by whoever holds the progress lock, given back to the user's thread by
/// `state`.
class Request {
 public:
  enum class State : std::uint8_t { free, posted, done, failed };

  /// Release: the bytes of the message, or that its source is free, go with it. Acquire in `finished`.
  void finish() { state.store(State::done, std::memory_order_release); }
  bool finished() const { return state.load(std::memory_order_acquire) == State::done; }
  /// It will never be done; its channel says why. What the user was told is done stays so.
  void fail() {
    State expected = State::posted;
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

  std::atomic<State> state{State::free};
  /// The engine's side still uses it although the user was told that it is done.
  std::atomic<bool> kept{false};
  bool sends = false;
  bool completion_optional = false;
  std::uint8_t count = 1;  ///< slots

  // The user's thread alone.
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
};

}  // namespace railyard
