/// What every object of the module shares: calls that are counted, calls without Python's lock, and the ends that
/// Python has and C++ does not: a fork, and an interpreter that shuts down around blocked threads.
///
/// All members here are read and written with Python's lock held; that is their only lock.
#pragma once

#include <pthread.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

namespace railyard::python {

namespace py = pybind11;

/// Grows by one in a forked child: objects of another number belong to the parent.
unsigned fork_generation() noexcept;
void watch_forks();

/// Gives up Python's lock for a scope. Unlike pybind11's: a thread that comes back while the interpreter shuts down
/// stops here for good. Python would end it by unwinding, which a destructor cannot let through.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    while (shutting_down()) ::pause();
    PyEval_RestoreThread(state_);
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  static bool shutting_down() noexcept;
  PyThreadState* state_;
};

template <typename Call>
auto without_gil(Call&& call) {
  const GilRelease release;
  return call();
}

/// True in the thread that Python's signal handlers run in.
bool is_main_thread() noexcept;

/// An object that is closed once, and never while a call of another thread is inside.
class Closable {
 public:
  explicit Closable(const char* kind) : kind_(kind) {}
  virtual ~Closable() = default;
  Closable(const Closable&) = delete;
  Closable& operator=(const Closable&) = delete;
  // Not noexcept: pybind11 would not see them in the classes below.
  bool closed() const { return closed_; }
  bool in_use() const { return calls_ > 0; }
  bool inherited() const noexcept { return generation_ != fork_generation(); }
  /// Raises railyard.ClosedError unless calls may be made.
  void check(const char* call) const {
    if (closed_ || closing_ || inherited()) [[unlikely]]
      refuse(call);
  }

 protected:
  /// False: closed already, nothing to do. Raises where a call of another thread is inside.
  bool begin_close();
  void end_close(bool done) noexcept {
    closing_ = false;
    closed_ = closed_ || done;
  }

 private:
  friend class Call;
  [[noreturn]] void refuse(const char* call) const;

  const char* kind_;
  unsigned generation_ = fork_generation();
  int calls_ = 0;
  bool closed_ = false;
  bool closing_ = false;
};

/// A call under way.
class Call {
 public:
  Call(Closable& on, const char* name) : on_(on) {
    on_.check(name);
    ++on_.calls_;
  }
  ~Call() { --on_.calls_; }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  Closable& on_;
};

/// Ends what an object owns, without Python's lock. In a forked child it is left as it is: its threads and
/// connections are the parent's.
template <typename Owned>
void end(const Closable& owner, std::unique_ptr<Owned>& owned) {
  if (owner.inherited()) {
    static_cast<void>(owned.release());
  } else if (owned != nullptr) {
    const GilRelease release;
    owned.reset();
  }
}

}  // namespace railyard::python
