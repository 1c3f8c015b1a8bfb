/// LinkState: the life of a link as one table: what each event does in each state. The engine performs the actions; no
/// other file changes a state. docs/failover.md has the picture, which a test draws from this table.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace railyard::transport {

enum class LinkState : std::uint8_t {
  connecting,  ///< the first connection: may be used, and has taken nothing yet
  up,          ///< carries what it is given
  suspect,     ///< is late: used only where there is nothing better
  down,        ///< has no connection; waits for its next attempt
  trying,      ///< connected anew, and must answer some pings before it is up
};
inline constexpr std::size_t kLinkStates = 5;

enum class LinkEvent : std::uint8_t {
  taken,        ///< the rail has taken something for it
  late,         ///< half its deadline is over, or the peer asks to fence its way back
  answered,     ///< a ping
  proven,       ///< enough pings in a row
  lost,         ///< for any LossCause
  due,          ///< the time of its next attempt has come
  unreachable,  ///< that attempt, or the first connection, did not even begin
  ended,        ///< its route is over
};
inline constexpr std::size_t kLinkEvents = 8;

enum class LinkAction : std::uint8_t {
  none,
  probe,       ///< ask all links of the route which of them answer
  leave,       ///< what it carries waits for the target's word; disconnect; back off
  connect,     ///< under a new epoch
  retry,       ///< disconnect, and try again after a pause
  rejoin,      ///< it takes its share again
  disconnect,  ///< and nothing else
};

struct LinkStep {
  LinkState next = LinkState::down;
  LinkAction action = LinkAction::none;
  bool operator==(const LinkStep&) const = default;
};

namespace link_table {

using enum LinkState;
using enum LinkAction;

/// By event, then by state: connecting, up, suspect, down, trying.
inline constexpr std::array<std::array<LinkStep, kLinkStates>, kLinkEvents> kSteps{{
    /* taken       */ {{{up, none}, {up, none}, {suspect, none}, {down, none}, {trying, none}}},
    /* late        */ {{{connecting, probe}, {suspect, probe}, {suspect, probe}, {down, none}, {trying, none}}},
    /* answered    */ {{{up, none}, {up, none}, {up, none}, {down, none}, {trying, none}}},
    /* proven      */ {{{connecting, none}, {up, none}, {suspect, none}, {down, none}, {up, rejoin}}},
    /* lost        */ {{{down, leave}, {down, leave}, {down, leave}, {down, none}, {down, retry}}},
    /* due         */ {{{connecting, none}, {up, none}, {suspect, none}, {trying, connect}, {trying, none}}},
    /* unreachable */ {{{down, none}, {up, none}, {suspect, none}, {down, none}, {down, none}}},
    /* ended       */ {{{down, disconnect}, {down, disconnect}, {down, disconnect}, {down, none}, {down, disconnect}}},
}};

}  // namespace link_table

constexpr LinkStep step(LinkState state, LinkEvent event) {
  return link_table::kSteps[static_cast<std::size_t>(event)][static_cast<std::size_t>(state)];
}
/// Whether new segments may go on it.
constexpr bool carries(LinkState state) {
  return state == LinkState::connecting || state == LinkState::up || state == LinkState::suspect;
}

const char* to_string(LinkState state);
const char* to_string(LinkEvent event);
const char* to_string(LinkAction action);
/// The table as a state diagram in Mermaid's language: every step that changes the state or does something.
std::string link_state_diagram();

}  // namespace railyard::transport
