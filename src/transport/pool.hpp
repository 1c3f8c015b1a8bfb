/// Pool: objects taken and given back by one holder of the progress lock. Grows in blocks up to a bound; never shrinks.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace railyard::transport {

/// T has a member `T* next`, and `reset` makes it as new. Objects keep their address for the pool's life.
template <typename T>
class Pool {
 public:
  Pool(std::size_t per_block, std::size_t most) : per_block_(per_block), most_(most) {}

  /// A default-valued object, or null at the bound.
  T* take() {
    if (free_ == nullptr && !grow()) return nullptr;
    T* object = free_;
    free_ = object->next;
    object->next = nullptr;
    ++outstanding_;
    return object;
  }
  void give(T* object) {
    object->reset();  // lets go of what it holds
    object->next = free_;
    free_ = object;
    --outstanding_;
  }
  std::size_t outstanding() const { return outstanding_; }
  /// What `take` would give out; null: it would have to grow.
  const T* next() const { return free_; }
  /// Every object there is, taken or not.
  template <typename Visit>
  void for_each(Visit&& visit) {
    for (auto& block : blocks_) {
      for (std::size_t i = 0; i < per_block_; ++i) visit(block[i]);
    }
  }
  /// Makes room for at least one more without touching the free list's users: so that the first op allocates nothing.
  bool grow() {
    const std::size_t have = blocks_.size() * per_block_;
    if (have + per_block_ > most_) return false;
    auto& block = blocks_.emplace_back(std::make_unique<T[]>(per_block_));
    for (std::size_t i = per_block_; i-- > 0;) {
      block[i].next = free_;
      free_ = &block[i];
    }
    return true;
  }

 private:
  std::size_t per_block_;
  std::size_t most_;
  std::size_t outstanding_ = 0;
  T* free_ = nullptr;
  std::vector<std::unique_ptr<T[]>> blocks_;
};

}  // namespace railyard::transport
