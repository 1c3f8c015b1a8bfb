/// RouteName: what both ends of a route call it and its links. A target knows a peer's link by its name alone, so two
/// routes must never have the same: names are 112 bits of a SHA-256, and two of a billion routes collide with a
/// probability below 10^-15.
#pragma once

#include <cstdint>

#include "base/identity.hpp"
#include "fabric/rail.hpp"

namespace railyard::transport {

struct RouteName {
  fabric::LinkName out;  ///< our links begin so
  fabric::LinkName in;   ///< the peer's begin so

  /// `instance` and the labels tell the routes between two processes apart; in a world a label is its end's rank.
  static RouteName make(const Identity& own, const Identity& peer, std::uint64_t instance, std::uint16_t label_out,
                        std::uint16_t label_in);
  /// The name of one link of a route.
  static fabric::LinkName of_link(fabric::LinkName route, std::uint16_t link) { return {route.high, route.low | link}; }
  /// The name of the route that a link belongs to.
  static fabric::LinkName of_route(fabric::LinkName link) { return {link.high, link.low & ~kLinkBits}; }

 private:
  static constexpr std::uint64_t kLinkBits = 0xffff;
};

}  // namespace railyard::transport
