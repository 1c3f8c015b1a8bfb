/// The signals that concern a launcher, as something to read instead of something that interrupts.
#pragma once

#include <signal.h>

#include "base/fd.hpp"

namespace railyard::launcher {

/// Blocks SIGINT, SIGTERM, SIGHUP, SIGCHLD and SIGPIPE in this thread for as long as it lives, and offers all but the
/// last to be read.
class SignalWatch {
 public:
  SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  /// Readable when a signal came; empty when the system refused.
  const Fd& fd() const { return fd_; }
  /// The mask before: what children should start with.
  const sigset_t& before() const { return before_; }
  /// The next signal that came; 0: none.
  int next() const;

 private:
  sigset_t before_{};
  Fd fd_;
};

}  // namespace railyard::launcher
