/// Reconnects: a link comes back. After a back-off it is connected anew, under the next epoch, and takes its share
/// again once it has answered some pings: docs/failover.md.
#pragma once

#include <cstdint>

#include "transport/core.hpp"
#include "transport/links.hpp"
#include "transport/losses.hpp"
#include "transport/probes.hpp"

namespace railyard::transport {

class Reconnects {
 public:
  Reconnects(Core& core, Links& links, Losses& losses, Probes& probes)
      : core_(core), links_(links), losses_(losses), probes_(probes) {}

  /// The link has just gone down: when it is tried again.
  void back_off(const Route& route, Link& link) const;
  /// The link is down: connects it, if that is due.
  void try_link(Route& route, Link& link);
  /// Goes on with an attempt.
  void tend(Route& route, Link& link);
  /// The attempt has come to nothing.
  void failed(Route& route, Link& link);
  /// How long one may take: many deadlines, and no less than any network needs.
  std::int64_t attempt_time() const;

 private:
  void announce_return(const Route& route, Link& link) const;

  Core& core_;
  Links& links_;
  Losses& losses_;
  Probes& probes_;
};

}  // namespace railyard::transport
