/// Route: the links between this process and one peer, one for each pair of rails, and how they are. Any number of
/// flows share it: none of them made it, and it ends with the last.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "base/identity.hpp"
#include "transport/link.hpp"
#include "transport/route_name.hpp"
#include "transport/wire.hpp"

namespace railyard::transport {

struct Flow;
struct Ranks;

/// A ping to be answered.
struct Pong {
  std::uint32_t round = 0;
  wire::LinkEnds ends;
  bool thorough = false;        ///< not before everything has been read that had come before the ping
  std::uint64_t came_with = 0;  ///< the poll of all rails that brought the ping
};

/// A round of pings over all links of a route, to find out which of them answer.
struct Probe {
  bool on = false;
  bool answering = false;         ///< begun because the peer began one
  std::uint32_t first_round = 0;  ///< of its pings
  std::uint32_t repeats = 0;
  std::int64_t since = 0;
  std::int64_t first_answer = 0;  ///< 0: none yet
  /// The first ping that was sent after the first answer; 0: none yet. It is a thorough one: whoever answers it has
  /// read what every link had brought by then.
  std::uint32_t second_round = 0;
  std::int64_t confirmed = 0;          ///< when that was answered; 0: not yet
  std::uint32_t looks = 0;             ///< at the links since then
  std::int64_t ended = INT64_MIN / 2;  ///< long ago
};

/// What the flows that may share a route have in common: never an address, a process number or an index of the other
/// machine's.
struct RouteKey {
  Identity peer;
  std::uint32_t engine = 0;  ///< which of the peer's
  std::uint32_t service_class = 0;
  std::uint32_t number = 0;  ///< one of so many links for each pair of rails; kPrivate: of one flow alone
  static constexpr std::uint32_t kPrivate = UINT32_MAX;
  /// What its packets are marked with; 0: as the settings say. The two lower bits are ECN's, and a class beyond a byte
  /// is no mark: those only keep links apart.
  std::uint8_t traffic_class() const {
    constexpr std::uint32_t kMarks = 0xfc;
    return service_class <= UINT8_MAX ? static_cast<std::uint8_t>(service_class & kMarks) : std::uint8_t{0};
  }
  auto operator<=>(const RouteKey&) const = default;  // NOLINT(modernize-use-nullptr): the compiler wrote it
};

/// Where a link of the peer's ends here.
struct InboundLink {
  std::uint16_t rail = 0;
  std::uint16_t link = 0;  ///< its place in the peer's route
  bool operator==(const InboundLink&) const = default;
};

/// How a route comes to its end: nothing of the peer's can land any more, and only then are its flows told.
struct Loss {
  bool on = false;
  bool left = false;            ///< the peer said so itself: no loss
  std::string why;              ///< for messages
  const Flow* cause = nullptr;  ///< on whose behalf: compared, never followed
  std::int64_t since = 0;       ///< on the health clock: only while somebody polls can a rail give anything back
  std::int64_t not_before =
      0;  ///< on the clock itself: until when packets of a rail with timed fences may be under way
};

struct Route {
  // Who.
  int peer = -1;                 ///< its rank, in a world; else what `find_peer` is asked for
  const Ranks* world = nullptr;  ///< null: a route of channels
  std::string who;               ///< "rank 3": for messages
  RouteName name;
  RouteKey key;
  std::uint64_t instance = 0;  ///< made anew with every route: both ends mean the same one
  std::uint32_t number = 0;    ///< tells the routes to `who` apart, for people: the lowest that was free
  std::vector<Link> links;
  std::vector<InboundLink> inbound;    ///< every link that the peer may have to us
  std::size_t max_write = 0;           ///< longest chunk that every link can carry
  std::size_t device_chunk = 0;        ///< longest chunk between memory of GPUs; 0: as any other
  std::vector<Flow*> flows;            ///< who shares it
  std::uint32_t bulk_flows = 0;        ///< of them, those with chunks in flight
  std::uint64_t bytes_in_flight = 0;   ///< of all chunks
  bool moved_by_us = false;            ///< a rail of its links moves bytes only while this process polls
  bool in_memory = false;              ///< its links go through this machine's memory
  const Flow* latency_flow = nullptr;  ///< the last flow that spoke and moves no chunks: compared, never followed
  std::int64_t latency_flow_at = 0;    ///< when it spoke
  Loss loss;                           ///< the peer is being given up
  bool over = false;                   ///< the peer is lost or has left: nothing will ever go this way again
  bool closing = false;                ///< its last flow is gone; waits for what the rails still hold

  // Health. Times are the engine's health clock.
  std::vector<Pong> pongs;
  std::int64_t pongs_since = 0;  ///< since when no link has taken them
  Probe probe;
  std::uint32_t rounds = 0;  ///< pings numbered so far
  // Both clocks of `Core`, side by side there and here: every message copies the two at once.
  std::int64_t message_at = 0;       ///< the last message from the peer, on the clock itself, for people; 0: none yet
  std::int64_t heard_at = 0;         ///< the same on the health clock, or when the route was last watched anew
  std::int64_t asked_at = 0;         ///< the last ping that a rail took
  std::int64_t owed_since = 0;       ///< when the peer last had nothing to answer
  std::int64_t renewed_for = 0;      ///< the silence after that moment for which the links were made anew
  std::int64_t concerned_since = 0;  ///< one of the peer's links to us ended: is it still there? 0: no doubt
  bool handshake_done = false;       ///< the peer has answered: it knows this route, and says goodbye when it leaves
  bool leaving = false;              ///< the peer has said goodbye; what it sent before may still be on its way
  bool leave_heard = false;          ///< the peer has heard our goodbye
  bool stalled = false;              ///< the peer's process lives and does not answer
  std::int64_t alive_at = 0;         ///< when a rail last said that the peer's process lives
  std::int64_t liveness_asked = 0;   ///< when the rails were last asked
  /// Attempts whose link stood, so that the peer's process was at work, and that were not answered: since it was last
  /// heard.
  std::uint32_t unanswered = 0;
  std::int64_t unanswered_since = 0;

  // Membership in the engine's lists.
  bool watched = false;
  bool watch_begins = false;  ///< its links have not been looked at since
  bool in_noticing = false;

  /// Whether another flow may share it: the peer must have it still. With the last word of its last flow the peer may
  /// have dropped its end; one that it made anew under this name would find its links shut out with their old epochs.
  bool may_be_joined() const;
  bool shared() const { return key.number != RouteKey::kPrivate; }
  std::uint16_t index_of(const Link& link) const { return static_cast<std::uint16_t>(&link - links.data()); }
};

}  // namespace railyard::transport
