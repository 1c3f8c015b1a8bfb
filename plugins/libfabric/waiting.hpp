/// How a thread waits for an object: the descriptor it sleeps on, rung by peers (through the bells of the endpoints)
/// and by other threads of this process.
#pragma once

#include <chrono>

#include "base/fd.hpp"
#include "objects.hpp"

namespace railyard::provider {

class Waiting {
 public:
  /// 0, or why this kind of waiting is not offered.
  int open(fi_wait_obj kind);
  fi_wait_obj kind() const { return kind_; }
  /// Whether a thread may sleep; else it can only try again.
  bool sleeps() const { return kind_ == FI_WAIT_FD || kind_ == FI_WAIT_UNSPEC; }
  int descriptor() const { return together_.get(); }
  void add(int bell);
  void remove(int bell);
  /// Makes the descriptor readable until `clear`.
  void ring();
  void clear();
  /// FI_GETWAIT and FI_GETWAITOBJ.
  int control(int command, void* argument) const;
  /// Sleeps until something rings, or for the time.
  void sleep(std::chrono::milliseconds longest) const;

 private:
  fi_wait_obj kind_ = FI_WAIT_NONE;
  Fd together_;
  Fd own_;
};

/// When a blocking call gives up. A negative timeout: never.
class Until {
 public:
  explicit Until(int milliseconds);
  bool over() const;
  /// What is left, at most `longest`.
  std::chrono::milliseconds left(std::chrono::milliseconds longest) const;

 private:
  bool forever_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace railyard::provider
