/// Keeps the two ranks of a bench in step, over the bootstrap: neither contestant's own way carries it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/contestant.hpp"
#include "railyard/bootstrap.hpp"
#include "railyard/result.hpp"

namespace railyard::bench {

/// What both ranks do next. Rank 0 decides.
struct Plan {
  bool stop = false;
  std::size_t contestant = 0;
  Round round;
};

class Referee {
 public:
  Referee(Bootstrap& bootstrap, Deadline deadline) : bootstrap_(bootstrap), deadline_(deadline) {}

  int rank() const { return bootstrap_.rank(); }
  /// Rank 0's plan, on both ranks.
  Result<Plan> agree(const Plan& mine);
  /// Both are ready: the round begins.
  Result<void> start() { return bootstrap_.barrier(deadline_); }
  /// Tells each other how the round went; the first failure of either rank, with its rank, is the outcome of both.
  Result<void> verdict(const Result<void>& mine);
  /// Gives the other rank some bytes; returns its own.
  Result<std::vector<std::byte>> exchange(std::span<const std::byte> mine);
  /// A verdict was a failure: both ranks know it, one of them is enough to report it.
  bool both_know() const { return both_know_; }

 private:
  Bootstrap& bootstrap_;
  Deadline deadline_;
  bool both_know_ = false;
};

}  // namespace railyard::bench
