/// The life of a link: what every event does in every state, and that the document shows it.
#include "transport/link_state.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <vector>

namespace railyard::transport {
namespace {

std::vector<LinkState> all_states() {
  std::vector<LinkState> states;
  for (std::size_t i = 0; i < kLinkStates; ++i) states.push_back(static_cast<LinkState>(i));
  return states;
}
std::vector<LinkEvent> all_events() {
  std::vector<LinkEvent> events;
  for (std::size_t i = 0; i < kLinkEvents; ++i) events.push_back(static_cast<LinkEvent>(i));
  return events;
}

/// States that a chain of events leads to.
std::set<LinkState> reached_from(LinkState start) {
  std::set<LinkState> reached{start};
  for (std::size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const LinkState state : std::set<LinkState>(reached)) {
      for (const LinkEvent event : all_events()) reached.insert(step(state, event).next);
    }
  }
  return reached;
}

TEST(LinkStates, OnlyItsNextAttemptTakesALinkOutOfDown) {
  for (const LinkEvent event : all_events()) {
    const LinkStep found = step(LinkState::down, event);
    if (event == LinkEvent::due) {
      EXPECT_EQ(found, (LinkStep{LinkState::trying, LinkAction::connect}));
    } else {
      EXPECT_EQ(found, (LinkStep{LinkState::down, LinkAction::none})) << to_string(event);
    }
  }
}

TEST(LinkStates, WhatALinkCarriesIsLeftExactlyWhenItStopsCarrying) {
  for (const LinkState state : all_states()) {
    for (const LinkEvent event : all_events()) {
      const LinkStep found = step(state, event);
      const bool stops = carries(state) && !carries(found.next);
      // A link that could not begin has carried nothing.
      const bool ends = event == LinkEvent::ended || event == LinkEvent::unreachable;
      EXPECT_EQ(found.action == LinkAction::leave, stops && !ends) << to_string(state) << ", " << to_string(event);
    }
  }
}

TEST(LinkStates, AConnectionIsDroppedExactlyOnTheWayDown) {
  for (const LinkState state : all_states()) {
    for (const LinkEvent event : all_events()) {
      // An attempt that did not begin has none.
      if (event == LinkEvent::unreachable) continue;
      const LinkStep found = step(state, event);
      const bool down = state != LinkState::down && found.next == LinkState::down;
      const bool drops = found.action == LinkAction::leave || found.action == LinkAction::retry ||
                         found.action == LinkAction::disconnect;
      EXPECT_EQ(drops, down) << to_string(state) << ", " << to_string(event);
    }
  }
}

TEST(LinkStates, ALinkThatWasLostCarriesAgainOnlyAfterItHasProvenItself) {
  for (const LinkEvent event : all_events()) {
    const LinkStep found = step(LinkState::trying, event);
    EXPECT_EQ(carries(found.next), event == LinkEvent::proven) << to_string(event);
    EXPECT_EQ(found.action == LinkAction::rejoin, event == LinkEvent::proven) << to_string(event);
  }
}

TEST(LinkStates, ASuspectIsClearedByAnAnswerAndByNothingElse) {
  for (const LinkEvent event : all_events()) {
    EXPECT_EQ(step(LinkState::suspect, event).next == LinkState::up, event == LinkEvent::answered) << to_string(event);
  }
}

TEST(LinkStates, LatenessIsAskedAboutWhereverALinkCarries) {
  for (const LinkState state : all_states()) {
    EXPECT_EQ(step(state, LinkEvent::late).action == LinkAction::probe, carries(state)) << to_string(state);
  }
}

TEST(LinkStates, EveryStateIsReachedAndNoneIsATrap) {
  EXPECT_EQ(reached_from(LinkState::connecting).size(), kLinkStates);
  for (const LinkState state : all_states()) {
    const auto reached = reached_from(state);
    EXPECT_TRUE(reached.contains(LinkState::up)) << to_string(state);
    EXPECT_TRUE(reached.contains(LinkState::down)) << to_string(state);
  }
}

TEST(LinkStates, TheDocumentsPictureIsTheTable) {
  std::ifstream file(std::string(RAILYARD_SOURCE_DIR) + "/docs/failover.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string wanted = "```mermaid\n" + link_state_diagram() + "```\n";
  EXPECT_NE(text.str().find(wanted), std::string::npos) << "docs/failover.md should hold:\n" << wanted;
}

}  // namespace
}  // namespace railyard::transport
