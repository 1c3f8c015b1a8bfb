/// A bounded queue between one producer thread and one consumer thread.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <utility>

namespace railyard {

/// Single producer, single consumer, no lock, no allocation after construction.
///
/// Memory order. `tail_` is written by the producer alone: its release store publishes the element before it, and the
/// consumer's acquire load of it makes that element visible. `head_` is written by the consumer alone: its release
/// store publishes that the slot is empty, and the producer's acquire load of it allows the slot to be filled again.
/// Each side keeps a private copy of the other's index, so that a ring that is neither full nor empty costs no shared
/// cache line besides the element's own.
///
/// Indices run on without wrapping at the capacity; their difference is the number of elements.
template <typename T>
class Ring {
 public:
  /// Holds at least `capacity` elements (rounded up to a power of two, at least 1).
  explicit Ring(std::size_t capacity)
      : mask_(std::bit_ceil(capacity == 0 ? std::size_t{1} : capacity) - 1),
        slots_(std::make_unique<Slot[]>(mask_ + 1)) {}
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    while (pop()) {
    }
  }

  std::size_t capacity() const noexcept { return mask_ + 1; }

  /// Producer only. False when full; `value` is untouched then.
  bool push(T&& value) { return emplace(std::move(value)); }
  bool push(const T& value) { return emplace(value); }

  /// Consumer only. Nothing when empty.
  std::optional<T> pop() {
    const std::size_t head = consumer_.head.load(std::memory_order_relaxed);
    if (head == consumer_.known_tail) {
      consumer_.known_tail = producer_.tail.load(std::memory_order_acquire);
      if (head == consumer_.known_tail) return std::nullopt;
    }
    T* const element = slots_[head & mask_].element();
    std::optional<T> value(std::move(*element));
    element->~T();
    consumer_.head.store(head + 1, std::memory_order_release);
    return value;
  }

  /// Any thread; exact only while neither side is active. Never more than the capacity.
  std::size_t size() const noexcept {
    // The head first: it can only grow towards a tail read later, so the difference is never negative.
    const std::size_t head = consumer_.head.load(std::memory_order_acquire);
    const std::size_t count = producer_.tail.load(std::memory_order_acquire) - head;
    return count > capacity() ? capacity() : count;
  }
  bool empty() const noexcept { return size() == 0; }

 private:
  static constexpr std::size_t kCacheLine = 64;

  struct Slot {
    alignas(T) std::byte storage[sizeof(T)];  // NOLINT(bugprone-sizeof-expression): T may be a pointer
    T* element() noexcept { return std::launder(reinterpret_cast<T*>(storage)); }
  };
  struct alignas(kCacheLine) Producer {
    std::atomic<std::size_t> tail{0};
    std::size_t known_head = 0;
  };
  struct alignas(kCacheLine) Consumer {
    std::atomic<std::size_t> head{0};
    std::size_t known_tail = 0;
  };

  template <typename Value>
  bool emplace(Value&& value) {
    const std::size_t tail = producer_.tail.load(std::memory_order_relaxed);
    if (tail - producer_.known_head > mask_) {
      producer_.known_head = consumer_.head.load(std::memory_order_acquire);
      if (tail - producer_.known_head > mask_) return false;
    }
    ::new (static_cast<void*>(slots_[tail & mask_].storage)) T(std::forward<Value>(value));
    producer_.tail.store(tail + 1, std::memory_order_release);
    return true;
  }

  const std::size_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  Producer producer_;
  Consumer consumer_;
};

}  // namespace railyard
