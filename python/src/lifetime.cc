#include "lifetime.hpp"

#include <atomic>

#include "errors.hpp"

namespace railyard::python {
namespace {

std::atomic<unsigned> generation{0};
pthread_t main_thread{};

}  // namespace

unsigned fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

void watch_forks() {
  main_thread = pthread_self();
  pthread_atfork(nullptr, nullptr, [] {
    generation.fetch_add(1, std::memory_order_relaxed);
    main_thread = pthread_self();
  });
}

bool is_main_thread() noexcept { return pthread_equal(pthread_self(), main_thread) != 0; }

bool GilRelease::shutting_down() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0 && !is_main_thread();
#else
  return _Py_IsFinalizing() != 0 && !is_main_thread();
#endif
}

bool Closable::begin_close() {
  if (closed_ || inherited()) return false;
  if (closing_) raise_busy(std::string(kind_) + ".close: another thread is closing it");
  if (calls_ > 0) raise_busy(std::string(kind_) + ".close: another thread is in a call of it");
  closing_ = true;
  return true;
}

void Closable::refuse(const char* call) const {
  const std::string place = std::string(kind_) + "." + call;
  if (inherited()) raise_closed(place + ": it belongs to the parent process: open one after the fork");
  raise_closed(place + (closed_ ? ": it is closed" : ": another thread is closing it"));
}

}  // namespace railyard::python
