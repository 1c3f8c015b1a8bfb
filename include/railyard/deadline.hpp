/// How long a wait may take. Every wait of the library takes one; none waits for ever by accident. One that is given
/// ends the wait to the moment. The default may not: see its constructor.
#pragma once

#include <chrono>
#include <cstdint>

namespace railyard {

class Deadline {
 public:
  /// The world's default (RAILYARD_TIMEOUT_MS). A wait for a rank that is about to be found lost then goes on until it
  /// is, so that it ends with the cause: never for more than as long again.
  constexpr Deadline() = default;
  /// What is left of the default: for the last part of a wait that is made in parts.
  static constexpr Deadline rest_of_default(std::chrono::nanoseconds duration) {
    return Deadline(duration.count() < 0 ? ~std::int64_t{0} : ~std::int64_t{duration.count()});
  }
  /// `duration` from the moment the wait begins.
  static constexpr Deadline in(std::chrono::nanoseconds duration) {
    return Deadline(duration.count() < 0 ? 0 : duration.count());
  }
  /// For ever: only on request.
  static constexpr Deadline never() { return Deadline(kNever); }

  /// The wait's length in nanoseconds, given the world's default.
  constexpr std::int64_t nanoseconds(std::int64_t by_default) const {
    if (nanoseconds_ >= 0) return nanoseconds_;
    return nanoseconds_ == kDefault ? by_default : ~nanoseconds_;
  }
  constexpr bool is_default() const { return nanoseconds_ < 0; }

 private:
  static constexpr std::int64_t kDefault = INT64_MIN;  ///< the other negative ones: ~ of what is left of it
  static constexpr std::int64_t kNever = INT64_MAX;
  constexpr explicit Deadline(std::int64_t nanoseconds) : nanoseconds_(nanoseconds) {}
  std::int64_t nanoseconds_ = kDefault;
};

}  // namespace railyard
