#include "launcher/signal_watch.hpp"

#include <sys/signalfd.h>
#include <time.h>

namespace railyard::launcher {

SignalWatch::SignalWatch() {
  sigset_t handled;
  sigemptyset(&handled);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&handled, signal);
  sigset_t blocked = handled;
  sigaddset(&blocked, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  fd_.reset(signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalWatch::~SignalWatch() {
  // A pipe that output went to may have closed; its signal must not end the program afterwards.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  const timespec no_wait{};
  if (sigismember(&before_, SIGPIPE) == 0) {
    while (sigtimedwait(&broken_pipe, nullptr, &no_wait) > 0) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int SignalWatch::next() const {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace railyard::launcher
