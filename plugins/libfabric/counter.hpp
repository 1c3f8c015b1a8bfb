/// Counters of completed operations.
#pragma once

#include <atomic>

#include "domain.hpp"
#include "queue.hpp"

namespace railyard::provider {

struct Counter {
  explicit Counter(Domain& owner) : domain(owner) {}
  fid_cntr fid{};
  Domain& domain;
  Watch watch;
  References references;
  std::atomic<std::uint64_t> value{0};
  std::atomic<std::uint64_t> errors{0};
  std::uint64_t last_read = 0;
  std::uint32_t idle_reads = 0;  ///< that saw the same value
  bool armed = false;

  /// Under the domain's lock.
  void add(std::uint64_t count) {
    value.store(value.load(std::memory_order_relaxed) + count, std::memory_order_release);
    changed();
  }
  void add_error(std::uint64_t count) {
    errors.store(errors.load(std::memory_order_relaxed) + count, std::memory_order_release);
    changed();
  }
  void changed() {
    if (armed) watch.waiting.ring();
    armed = false;
  }
};

}  // namespace railyard::provider
