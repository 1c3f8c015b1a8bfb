/// What rails of every driver have: their names, why a post failed, the events that wait for `poll`, and the state of
/// their interface.
#pragma once

#include <optional>
#include <string>

#include "fabric/link_watch.hpp"
#include "fabric/links.hpp"
#include "fabric/pending.hpp"
#include "fabric/rail.hpp"

namespace railyard::fabric {

class BaseRail : public Rail {
 public:
  const Capabilities& capabilities() const final { return capabilities_; }
  std::string name() const final { return name_; }
  std::string fabric() const final { return fabric_; }
  std::string failure() const final;

 protected:
  /// The driver's codes for posts that no link takes.
  struct PostErrors {
    int stopped = 0;
    int unknown = 0;  ///< there is no such link
    int lost = 0;
  };

  Post fail(const char* operation, int error) {
    failed_operation_ = operation;
    failed_error_ = error;
    return Post::failed;
  }
  /// Why `link`, which may be null, takes no posts now.
  Post refuse_post(const char* operation, const Link* link, const PostErrors& errors);
  Result<void> refuse_if_stopped() const;

  /// Where it cannot be watched, a warning says so.
  void watch_interface(std::string interface);
  /// Whether it can carry anything, when that has changed: told as an event.
  std::optional<bool> look_at_interface();
  void unwatch_interface() { watch_.reset(); }
  int interface_descriptor() const { return watch_ ? watch_->descriptor() : -1; }

  Capabilities capabilities_;
  std::string name_;
  std::string fabric_;
  bool stopped_ = false;
  PendingEvents pending_;  ///< what `poll` hands out first

 private:
  const char* failed_operation_ = "";
  int failed_error_ = 0;
  std::optional<LinkWatch> watch_;
};

}  // namespace railyard::fabric
