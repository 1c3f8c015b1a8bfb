/// A first-in-first-out queue that owns no memory while it was never used: there are three for each of many rails.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace railyard::fabric::sim {

template <typename T>
class Fifo {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  std::size_t capacity_bytes() const { return slots_.size() * sizeof(T); }
  T& front() { return slots_[head_]; }
  /// Counted from the front.
  T& operator[](std::size_t index) { return slots_[(head_ + index) & (slots_.size() - 1)]; }

  void push(T value) {
    if (count_ == slots_.size()) grow();
    slots_[(head_ + count_) & (slots_.size() - 1)] = std::move(value);
    ++count_;
  }
  void pop() {
    head_ = (head_ + 1) & (slots_.size() - 1);
    --count_;
  }
  /// Takes one out of the middle; those before it move up.
  void remove(std::size_t index) {
    for (; index > 0; --index) (*this)[index] = std::move((*this)[index - 1]);
    pop();
  }
  void clear() { head_ = count_ = 0; }

 private:
  void grow() {
    std::vector<T> larger(slots_.empty() ? 4 : slots_.size() * 2);
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
    slots_.swap(larger);
    head_ = 0;
  }

  std::vector<T> slots_;  // a power of two long
  std::size_t head_ = 0;
  std::size_t count_ = 0;
};

}  // namespace railyard::fabric::sim
