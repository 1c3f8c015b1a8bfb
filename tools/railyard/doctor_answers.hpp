/// The other end of `railyard doctor`'s tries between ranks: takes what each connection brings and answers once it is
/// all there.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "base/fd.hpp"

namespace railyard::tool {

/// Answers in a thread of its own until it ends: the rank itself is busy trying.
class PeerAnswers {
 public:
  /// More than a window of short packets: some of these are as long as the path is said to carry.
  static constexpr std::size_t kBytes = 65536;

  /// `listeners`: non-blocking.
  explicit PeerAnswers(std::vector<Fd> listeners);
  PeerAnswers(const PeerAnswers&) = delete;
  PeerAnswers& operator=(const PeerAnswers&) = delete;
  ~PeerAnswers();

 private:
  void serve();

  std::vector<Fd> listeners_;
  Fd ended_;      ///< readable when the other end of this pipe is closed
  Fd ends_with_;  ///< that end
  std::thread thread_;
};

}  // namespace railyard::tool
