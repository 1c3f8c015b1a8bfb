/// What all objects of the provider share: their fids, the domain's lock, and answers for calls that are not offered.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace railyard::provider {

/// A call of a table that this provider does not offer: `not_offered<&fi_ops_cm::connect>`.
template <typename Member>
struct NotOffered;
template <typename Table, typename Answer, typename... Arguments>
struct NotOffered<Answer (*Table::*)(Arguments...)> {
  static Answer call(Arguments...) {
    if constexpr (std::is_pointer_v<Answer>) {
      return nullptr;
    } else {
      return static_cast<Answer>(-FI_ENOSYS);
    }
  }
};
template <auto Member>
inline constexpr auto not_offered = &NotOffered<decltype(Member)>::call;

/// Held for a moment; does nothing where the program promised to call from one thread at a time.
class Lock {
 public:
  explicit Lock(bool needed) : needed_(needed) {}
  void lock() {
    if (!needed_) return;
    while (held_.exchange(true, std::memory_order_acquire)) {
      for (int spin = 0; held_.load(std::memory_order_relaxed); ++spin)
        if (spin > kSpins) ::sched_yield();
    }
  }
  void unlock() {
    if (needed_) held_.store(false, std::memory_order_release);
  }

 private:
  static constexpr int kSpins = 200;
  const bool needed_;
  std::atomic<bool> held_{false};
};

class Guard {
 public:
  explicit Guard(Lock& lock) : lock_(lock) { lock_.lock(); }
  ~Guard() { lock_.unlock(); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  Lock& lock_;
};

/// Every object begins with its fid: a call finds its object there.
template <typename Object, typename Fid>
Object* object_of(Fid* fid) {
  return reinterpret_cast<Object*>(fid);
}

/// How many objects stand on this one: it does not close under them.
class References {
 public:
  void add() { count_.fetch_add(1, std::memory_order_relaxed); }
  void drop() { count_.fetch_sub(1, std::memory_order_relaxed); }
  bool none() const { return count_.load(std::memory_order_relaxed) == 0; }

 private:
  std::atomic<int> count_{0};
};

}  // namespace railyard::provider
