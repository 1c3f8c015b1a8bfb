/// FailureLog: operations that failed alone, while their flow goes on, until somebody has asked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "railyard/result.hpp"

namespace railyard::transport {

/// Why an operation failed. On the wire in refusals and replies: values stay as they are.
enum class FailureCause : std::uint8_t {
  none = 0,
  not_exposed = 1,   ///< the target has no such window (any more)
  out_of_range = 2,  ///< outside what the target exposes
  misaligned = 3,
  unknown_code = 4,  ///< no such operation
  malformed = 5,     ///< the target could not make sense of it
  bad_memory = 6,    ///< the target's key is not valid (any more), or the local memory cannot be used
  deregistered = 7,  ///< our own memory was deregistered under it
  rail_failed = 8,   ///< a native atomic was lost with its link: whether it took effect is not known
  peer_lost = 9,
  too_old = 10,  ///< so many others have failed since that nothing is known of this one
};
const char* to_string(FailureCause cause);
Status status_of(FailureCause cause);

struct Failure {
  std::uint64_t number = 0;
  int peer = -1;
  std::uint32_t sequence = 0;
  FailureCause cause = FailureCause::none;
  bool told = false;           ///< somebody has asked
  const void* flow = nullptr;  ///< of an operation in a slot: compared, never followed
};
/// Names the peer, the operation, its sequence number and the cause.
Error to_error(const Failure& failure);

/// Written by whoever holds the progress lock, read by any thread. Exact for the failures with the kMost highest
/// numbers; an operation older than one that had to be forgotten answers `too_old`, never success.
class FailureLog {
 public:
  static constexpr std::size_t kMost = 4096;

  /// Before the operation counts as complete. False: this number has failed already.
  bool record(const Failure& failure);
  /// How an operation that is complete has failed; nothing: it has not. Counts as told.
  std::optional<Failure> find(std::uint64_t number) {
    // Relaxed: recorded before the operation was published as complete, which the caller has acquired.
    if (number > newest_.load(std::memory_order_relaxed)) return std::nullopt;
    return look_up(number);
  }
  /// The first failure that nobody has asked about; all of them then count as told. `flow`: of that one alone.
  std::optional<Failure> take_untold(const void* flow = nullptr);

 private:
  std::optional<Failure> look_up(std::uint64_t number);

  std::atomic<std::uint64_t> newest_{0};
  std::atomic<std::uint32_t> untold_{0};
  std::mutex mutex_;
  std::uint64_t forgotten_ = 0;  ///< the highest number that had to leave
  std::map<std::uint64_t, Failure> failures_;
};

}  // namespace railyard::transport
