/// Libraries that are found at run time, and what they may not do to this process.
#pragma once

#include <signal.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>
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

/// The calls of such a library, by their names.
class LibraryCalls {
 public:
  explicit LibraryCalls(const char* name);

  explicit operator bool() const { return object_ != nullptr; }
  /// Why there is no such library here.
  const char* why() const { return why_; }

  /// False: the library has no such call, and the pointer is null.
  template <typename Call>
  bool find(const char* name, Call& call) {
    call = reinterpret_cast<Call>(address_of(name));
    return call != nullptr;
  }
  template <typename Call>
  void need(const char* name, Call& call) {
    if (!find(name, call) && missing_ == nullptr) missing_ = name;
  }
  /// The first call that is needed and not there; null: there is none.
  const char* missing() const { return missing_; }

 private:
  void* address_of(const char* name) const;

  void* object_ = nullptr;
  const char* why_ = nullptr;
  const char* missing_ = nullptr;
};

/// A table of calls that a process finds once, or why it did not. Needs no destructor: users may outlive every static,
/// and nothing may be left when a plugin is unloaded.
template <typename Calls>
struct LoadedCalls {
  static_assert(std::is_trivially_destructible_v<Calls>);

  Calls calls;
  std::array<char, 400> error{};  ///< empty: there is none

  void fail(std::string_view why) { why.copy(error.data(), error.size() - 1); }
  bool failed() const { return error[0] != 0; }
};

}  // namespace railyard
