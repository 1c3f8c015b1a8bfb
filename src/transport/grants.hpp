/// Grants: how many segments each sender may be ahead of what has taken effect here (promise 6). Whoever is heard gets
/// an equal share of the receive buffers, at least the first grant and at most a window. A grant is never taken back:
/// the limit that a flow has told only rises.
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/flow_receiver.hpp"

namespace railyard::transport {

class Grants {
 public:
  /// `buffers`: that senders share.
  void open(std::uint32_t buffers, std::uint32_t window) {
    buffers_ = buffers;
    window_ = window;
    share();
  }
  /// What each may send at present.
  std::uint32_t each() const { return each_; }
  /// A sender more, or one less.
  void begin() {
    ++senders_;
    share();
  }
  void end() {
    --senders_;
    share();
  }

 private:
  void share() { each_ = std::clamp(buffers_ / std::max(senders_, 1U), kFirstGrant, window_); }

  std::uint32_t buffers_ = 0;
  std::uint32_t window_ = kFirstGrant;
  std::uint32_t senders_ = 0;
  std::uint32_t each_ = kFirstGrant;
};

}  // namespace railyard::transport
