/// The state of one network interface, as the kernel tells it (rtnetlink).
#pragma once

#include <optional>
#include <string>

#include "base/fd.hpp"
#include "railyard/result.hpp"

namespace railyard::fabric {

/// Watches one interface of the network namespace that this thread is in when it is opened.
class LinkWatch {
 public:
  static Result<LinkWatch> open(std::string interface);

  /// Whether it can carry anything, when that has changed since the last call. Never blocks.
  std::optional<bool> changed();
  /// Becomes readable when there may be a change.
  int descriptor() const { return socket_.get(); }

 private:
  LinkWatch() = default;
  bool ask() const;

  std::string interface_;
  Fd socket_;
  bool usable_ = true;
};

}  // namespace railyard::fabric
