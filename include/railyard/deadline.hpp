/// How long a wait may take. Every wait of the library takes one; none waits for ever by accident.
#pragma once

#include <chrono>
#include <cstdint>

namespace railyard {

class Deadline {
 public:
  /// The world's default (RAILYARD_TIMEOUT_MS).
  constexpr Deadline() = default;
  /// `duration` from the moment the wait begins.
  static constexpr Deadline in(std::chrono::nanoseconds duration) {
    return Deadline(duration.count() < 0 ? 0 : duration.count());
  }
  /// For ever: only on request.
  static constexpr Deadline never() { return Deadline(kNever); }

  /// The wait's length in nanoseconds, given the world's default.
  constexpr std::int64_t nanoseconds(std::int64_t by_default) const {
    return nanoseconds_ == kDefault ? by_default : nanoseconds_;
  }

 private:
  static constexpr std::int64_t kDefault = -1;
  static constexpr std::int64_t kNever = INT64_MAX;
  constexpr explicit Deadline(std::int64_t nanoseconds) : nanoseconds_(nanoseconds) {}
  std::int64_t nanoseconds_ = kDefault;
};

}  // namespace railyard
