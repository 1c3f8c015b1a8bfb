/// Timeouts as Python has them, and waits that Ctrl-C ends.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "errors.hpp"
#include "lifetime.hpp"
#include "railyard/deadline.hpp"

namespace railyard::python {

/// None: the default (RAILYARD_TIMEOUT_MS); a number of seconds; math.inf: for ever.
class Timeout {
 public:
  static constexpr std::int64_t kNever = INT64_MAX;

  explicit Timeout(py::handle given) {
    if (given.is_none()) return;
    const double seconds = given.cast<double>();
    if (!(seconds >= 0)) throw py::value_error("a timeout is None, or seconds that are not negative");
    nanoseconds_ = seconds > 9e9 ? kNever : static_cast<std::int64_t>(seconds * 1e9);
  }
  Deadline deadline() const { return nanoseconds_ < 0 ? Deadline() : of(nanoseconds_); }
  std::int64_t nanoseconds(std::uint32_t default_ms) const {
    return nanoseconds_ < 0 ? std::int64_t{default_ms} * 1'000'000 : nanoseconds_;
  }
  bool by_default() const { return nanoseconds_ < 0; }
  static Deadline of(std::int64_t nanoseconds) {
    return nanoseconds == kNever ? Deadline::never() : Deadline::in(std::chrono::nanoseconds(nanoseconds));
  }

 private:
  std::int64_t nanoseconds_ = -1;
};

/// Runs Python's signal handlers; what they raise goes on from here.
inline void check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

/// Makes a wait that can be taken up again after a timeout. In the main thread it comes up now and then, so that Ctrl-C
/// is heard. Not more often: the library asks after a silent peer a second into a wait.
template <typename Wait>
auto wait_in_parts(Timeout timeout, std::uint32_t default_ms, Wait&& wait) {
  constexpr std::int64_t kPart = 2'500'000'000;
  const std::int64_t whole = timeout.nanoseconds(default_ms);
  if (whole <= kPart || !is_main_thread()) return without_gil([&] { return wait(timeout.deadline()); });
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  for (;;) {
    const std::int64_t passed = std::chrono::nanoseconds(Clock::now() - began).count();
    const std::int64_t left = whole == Timeout::kNever ? Timeout::kNever : whole - passed;
    const std::int64_t part = std::clamp<std::int64_t>(left, 0, kPart);
    const bool last = timeout.by_default() && part == left;
    const Deadline deadline = last ? Deadline::rest_of_default(std::chrono::nanoseconds(part)) : Timeout::of(part);
    auto result = without_gil([&] { return wait(deadline); });
    if (result.ok() || result.status() != Status::timeout) return result;
    if (part == left || left <= 0) {
      raise(result.error(), " (the end of " + std::to_string(static_cast<double>(whole) * 1e-9) + " s)");
    }
    check_signals();
  }
}

}  // namespace railyard::python
