/// Time as a parameter: the engine never asks the machine itself, so that it runs unchanged on a simulated clock.
#pragma once

#include <cstdint>

namespace railyard {

/// Nothing is destroyed with a clock, and nobody owns one by its base: so a static one serves until the very end of a
/// process or of a library that is unloaded.
class Clock {
 public:
  /// Nanoseconds from an arbitrary start; never goes back.
  virtual std::int64_t now() const = 0;
  /// Called by a wait that found nothing to do. Real time: lets another thread have the core.
  virtual void idle() = 0;
  /// Whether time passes while a thread sleeps in the kernel.
  virtual bool real() const { return false; }

 protected:
  ~Clock() = default;
};

/// The machine's monotonic clock.
class SteadyClock final : public Clock {
 public:
  std::int64_t now() const override;
  void idle() override;
  bool real() const override { return true; }
};

}  // namespace railyard
