/// Libraries that are found at run time, and what they may not do to this process.
#pragma once

#include <signal.h>

#include <array>
#include <cstdint>
#include <vector>

namespace railyard {

/// Puts back what the libraries loaded here do to signals while one of these lives. Some take over SIGSEGV, SIGABRT or
/// SIGTERM when they are loaded or first called, and end the process in their handler: what a signal does belongs to
/// the program.
///
/// Another thread may install a handler of its own meanwhile, which stays: a handler is put back only where it lies in
/// a library that was loaded under a guard. A change to "ignore" or "default" cannot be told apart and is put back.
class KeepSignals {
 public:
  KeepSignals();
  ~KeepSignals();
  KeepSignals(const KeepSignals&) = delete;
  KeepSignals& operator=(const KeepSignals&) = delete;

 private:
  std::array<struct sigaction, NSIG> before_{};
  std::array<bool, NSIG> known_{};
  std::vector<std::uintptr_t> objects_;  ///< where libraries were loaded before
};

/// Opens a library for good, since such libraries keep state and threads; its symbols stay its own. Null: `dlerror`
/// says why.
void* open_shared_library(const char* name);

}  // namespace railyard
