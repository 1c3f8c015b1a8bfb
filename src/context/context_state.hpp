/// What a Context holds: what all its users have in common, and one part for each kind of user, made when the first of
/// that kind comes. The parts belong to the layers above, which know what is in them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/identity.hpp"
#include "railyard/context.hpp"

namespace railyard {

class Channels;
class WorldEngine;

class ContextState {
 public:
  explicit ContextState(const Settings& settings) : settings(settings) {}
  static ContextState& of(const Context& context) { return *context.state_; }

  /// The part that `slot` is for; if it is not there yet, `open` makes it, and `tell(part, statistics)` adds what it
  /// counts from now on.
  template <typename Part, typename Open, typename Tell>
  Result<std::shared_ptr<Part>> part(std::shared_ptr<Part> ContextState::*slot, Open&& open, Tell&& tell) {
    const std::lock_guard lock(mutex_);
    if (this->*slot == nullptr) {
      Result<std::shared_ptr<Part>> made = open();
      if (!made) return made;
      this->*slot = std::move(*made);
      tellers_.push_back(
          [part = (this->*slot).get(), tell](ContextStatistics& statistics) { tell(*part, statistics); });
    }
    return this->*slot;
  }
  /// The same if it is there.
  template <typename Part>
  std::shared_ptr<Part> existing(std::shared_ptr<Part> ContextState::*slot) {
    const std::lock_guard lock(mutex_);
    return this->*slot;
  }

  ContextStatistics statistics() {
    ContextStatistics statistics;
    const std::lock_guard lock(mutex_);
    for (const auto& tell : tellers_) tell(statistics);
    return statistics;
  }

  const Settings settings;
  const Identity identity = Identity::make();
  std::shared_ptr<WorldEngine> worlds;  ///< src/window
  std::shared_ptr<Channels> channels;   ///< src/message

 private:
  std::mutex mutex_;  ///< of the parts
  std::vector<std::function<void(ContextStatistics&)>> tellers_;
};

}  // namespace railyard
