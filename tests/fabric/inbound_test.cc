/// Peers' links to a connected rail, without a driver (fabric/inbound.hpp).
#include "fabric/inbound.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace railyard::fabric {
namespace {

struct TestCarrier : Carrier {
  int peer = 1;
  bool open = true;
  bool same_peer(const TestCarrier& other) const { return peer == other.peer; }
};

/// A driver whose carriers come to rest at once, or when it is told.
class InboundTest : public ::testing::Test {
 protected:
  void close(TestCarrier& carrier) {
    carrier.open = false;
    closed_.push_back(&carrier);
    if (rests_at_once_) inbound_.rested(carrier);
  }
  auto closer() {
    return [this](TestCarrier& carrier) { close(carrier); };
  }
  TestCarrier& seat(const LinkTag& tag, std::uint8_t lane = 0, int peer = 1) {
    TestCarrier& carrier = carriers_.emplace_back();
    carrier.lane = lane;
    carrier.peer = peer;
    EXPECT_TRUE(inbound_.welcome(tag));
    EXPECT_TRUE(inbound_.seat(carrier, tag, closer()));
    return carrier;
  }
  bool fence(const LinkTag& tag) { return inbound_.fence(tag, closer()); }
  /// What was told as left since the last call.
  std::vector<LinkTag> left() {
    std::vector<LinkTag> tags;
    std::array<Event, 16> room;
    for (std::size_t count = 0; (count = events_.take(room)) != 0;)
      for (std::size_t i = 0; i < count; ++i)
        if (room[i].kind == Event::Kind::left) tags.push_back(room[i].link);
    return tags;
  }

  bool rests_at_once_ = true;
  PendingEvents events_;
  InboundLinks<TestCarrier> inbound_{events_};
  std::deque<TestCarrier> carriers_;
  std::vector<TestCarrier*> closed_;
};

TEST_F(InboundTest, ALinkThatEndsByItselfIsToldOnce) {
  TestCarrier& carrier = seat({7, 3});
  inbound_.left(carrier);
  inbound_.left(carrier);
  const auto tags = left();
  ASSERT_EQ(tags.size(), 1U);
  EXPECT_EQ(tags[0].id, 7U);
  EXPECT_EQ(tags[0].epoch, 3U);
}

TEST_F(InboundTest, ANewerEpochEndsThoseBeforeIt) {
  TestCarrier& old = seat({7, 1});
  TestCarrier& fresh = seat({7, 2});
  EXPECT_FALSE(old.open);
  EXPECT_TRUE(fresh.open);
  const auto tags = left();
  ASSERT_EQ(tags.size(), 1U);
  EXPECT_EQ(tags[0].epoch, 1U);
  EXPECT_FALSE(inbound_.welcome({7, 1})) << "an earlier epoch comes too late";
  EXPECT_TRUE(inbound_.welcome({7, 2}));
  EXPECT_TRUE(inbound_.welcome({8, 0})) << "another link";
}

TEST_F(InboundTest, ASecondCarrierOfTheSameEpochTakesTheFirstOnesPlaceUnsaid) {
  TestCarrier& old = seat({7, 1});
  TestCarrier& fresh = seat({7, 1});
  EXPECT_FALSE(old.open);
  EXPECT_TRUE(fresh.open);
  EXPECT_TRUE(left().empty()) << "the link is still here";
  inbound_.left(fresh);
  EXPECT_EQ(left().size(), 1U);
}

TEST_F(InboundTest, LanesOfOneLinkStandSideBySideAndLeaveTogether) {
  TestCarrier& control = seat({7, 1}, 0);
  TestCarrier& data = seat({7, 1}, 1);
  EXPECT_TRUE(control.open);
  inbound_.left(control);
  EXPECT_TRUE(left().empty()) << "its other lane may still have bytes to read";
  inbound_.left(data);
  EXPECT_EQ(left().size(), 1U);
}

TEST_F(InboundTest, PeersThatUseTheSameNameDoNotEndEachOther) {
  TestCarrier& one = seat({7, 1}, 0, 1);
  TestCarrier& other = seat({7, 1}, 0, 2);
  EXPECT_TRUE(one.open);
  EXPECT_TRUE(other.open);
  inbound_.left(one);
  EXPECT_EQ(left().size(), 1U);
}

TEST_F(InboundTest, ACarrierOfAnEarlierEpochClosesWithItAndSeatsNobody) {
  TestCarrier& carrier = seat({7, 1});
  EXPECT_FALSE(inbound_.seat(carrier, {7, 2}, closer()));
  EXPECT_FALSE(carrier.open);
  const auto tags = left();
  ASSERT_EQ(tags.size(), 1U);
  EXPECT_EQ(tags[0].epoch, 1U);
}

TEST_F(InboundTest, ACarrierThatGoesOverToAnotherLinkTellsOfTheFirst) {
  TestCarrier& carrier = seat({7, 1});
  EXPECT_TRUE(inbound_.seat(carrier, {8, 0}, closer()));
  EXPECT_TRUE(carrier.open);
  EXPECT_EQ(carrier.inbound->id, 8U);
  const auto tags = left();
  ASSERT_EQ(tags.size(), 1U);
  EXPECT_EQ(tags[0].id, 7U);
}

TEST_F(InboundTest, TheSameTagAgainChangesNothing) {
  TestCarrier& carrier = seat({7, 1});
  EXPECT_TRUE(inbound_.seat(carrier, {7, 1}, closer()));
  EXPECT_TRUE(carrier.open);
  EXPECT_TRUE(left().empty());
  inbound_.left(carrier);
  EXPECT_EQ(left().size(), 1U);
}

TEST_F(InboundTest, AFenceShutsOutItsEpochsAndNoLater) {
  TestCarrier& carrier = seat({7, 3});
  EXPECT_TRUE(fence({7, 2})) << "nothing of these epochs is here";
  EXPECT_TRUE(carrier.open);
  EXPECT_TRUE(fence({7, 3}));
  EXPECT_FALSE(carrier.open);
  EXPECT_TRUE(left().empty()) << "who fenced it knows";
  EXPECT_FALSE(inbound_.welcome({7, 3}));
  EXPECT_TRUE(inbound_.fenced({7, 3}));
  EXPECT_FALSE(inbound_.fenced({7, 4}));
  EXPECT_TRUE(inbound_.welcome({7, 4}));
}

TEST_F(InboundTest, AFenceWithoutALinkKeepsItOutBeforeItComes) {
  EXPECT_TRUE(fence({7, 3}));
  EXPECT_FALSE(inbound_.welcome({7, 0}));
  EXPECT_FALSE(inbound_.welcome({7, 3}));
  EXPECT_TRUE(inbound_.welcome({7, 4}));
}

TEST_F(InboundTest, AFenceIsDoneOnceWhatHadLandedIsPolled) {
  seat({7, 1});
  Event landed;
  landed.kind = Event::Kind::landed;
  events_.push(landed);
  EXPECT_FALSE(fence({7, 1}));
  EXPECT_FALSE(fence({7, 1})) << "asked again before a poll";
  std::array<Event, 1> room;
  ASSERT_EQ(events_.take(room), 1U);
  EXPECT_TRUE(fence({7, 1}));
}

TEST_F(InboundTest, AFenceWaitsForACarrierThatComesToRestLater) {
  rests_at_once_ = false;
  TestCarrier& carrier = seat({7, 1});
  EXPECT_FALSE(fence({7, 1}));
  EXPECT_FALSE(carrier.open);
  EXPECT_FALSE(fence({7, 1}));
  Event landed;  // at the very end
  landed.kind = Event::Kind::landed;
  events_.push(landed);
  inbound_.rested(carrier);
  EXPECT_FALSE(fence({7, 1})) << "what landed last has not been polled";
  std::array<Event, 1> room;
  ASSERT_EQ(events_.take(room), 1U);
  EXPECT_TRUE(fence({7, 1}));
  EXPECT_EQ(closed_.size(), 1U);
}

TEST_F(InboundTest, AFenceTakesOverACarrierThatIsClosingAlready) {
  rests_at_once_ = false;
  TestCarrier& carrier = seat({7, 1});
  inbound_.end(carrier);
  EXPECT_FALSE(fence({7, 1}));
  EXPECT_TRUE(closed_.empty()) << "it closes already";
  inbound_.rested(carrier);
  EXPECT_TRUE(fence({7, 1}));
  EXPECT_TRUE(left().empty());
}

TEST_F(InboundTest, ALaterFenceWaitsForTheCarriersOfAnEarlierOne) {
  rests_at_once_ = false;
  TestCarrier& carrier = seat({7, 1});
  EXPECT_FALSE(fence({7, 1}));
  EXPECT_FALSE(fence({7, 5}));
  inbound_.rested(carrier);
  EXPECT_TRUE(fence({7, 5}));
}

TEST_F(InboundTest, ALinkThatWasNeverUsedLeavesUnsaid) {
  TestCarrier& carrier = seat({7, 1});
  inbound_.withdraw(carrier);
  EXPECT_TRUE(left().empty());
  EXPECT_FALSE(carrier.inbound);
  EXPECT_TRUE(fence({7, 1}));
  EXPECT_TRUE(carrier.open) << "nothing of it uses the carrier any more";
}

TEST_F(InboundTest, AForgottenLinkBeginsAnew) {
  TestCarrier& carrier = seat({7, 5});
  inbound_.left(carrier);
  EXPECT_FALSE(inbound_.welcome({7, 1}));
  inbound_.forget(7);
  EXPECT_TRUE(inbound_.welcome({7, 1}));
}

TEST_F(InboundTest, ALinkThatIsForgottenWhileItIsHereStillLeavesOnce) {
  TestCarrier& carrier = seat({7, 5});
  inbound_.forget(7);
  EXPECT_TRUE(inbound_.welcome({7, 1}));
  EXPECT_EQ(inbound_.find(7, [](const TestCarrier&) { return true; }), &carrier);
  (void)left();
  inbound_.left(carrier);
  EXPECT_EQ(left().size(), 1U);
  EXPECT_EQ(inbound_.find(7, [](const TestCarrier&) { return true; }), nullptr);
}

TEST_F(InboundTest, AFenceIsForgottenWithItsLinkThoughItStillWaits) {
  rests_at_once_ = false;
  TestCarrier& carrier = seat({7, 5});
  EXPECT_FALSE(fence({7, 5}));
  inbound_.forget(7);
  EXPECT_TRUE(inbound_.welcome({7, 1}));
  inbound_.rested(carrier);
  EXPECT_TRUE(left().empty());
}

/// Any order of what peers and drivers do: every (link, epoch) that came is either told as left exactly once, or was
/// fenced or withdrawn; and after a fence is done, no carrier of its epochs is there.
TEST_F(InboundTest, HoldsForAnyOrderOfEvents) {
  std::mt19937 random(20261118);
  const auto below = [&](unsigned bound) { return static_cast<unsigned>(random() % bound); };
  for (int round = 0; round < 300; ++round) {
    PendingEvents events;
    InboundLinks<TestCarrier> inbound(events);
    std::deque<TestCarrier> carriers;
    std::map<std::pair<std::uint64_t, std::uint32_t>, int> told;
    std::set<std::pair<std::uint64_t, std::uint32_t>> came;
    std::map<std::uint64_t, std::uint32_t> fences;
    std::vector<TestCarrier*> closing;
    const auto close = [&](TestCarrier& carrier) {
      if (below(2) == 0)
        inbound.rested(carrier);
      else
        closing.push_back(&carrier);
    };
    const auto poll = [&] {
      std::array<Event, 4> room;
      const std::size_t count = events.take(room);
      for (std::size_t i = 0; i < count; ++i) ++told[{room[i].link.id.low, room[i].link.epoch}];
    };
    for (int step = 0; step < 80; ++step) {
      const LinkTag tag{1 + below(3), below(6)};
      switch (below(6)) {
        case 0:
        case 1:
          if (inbound.welcome(tag)) {
            while (!events.empty()) poll();
            TestCarrier& carrier = carriers.emplace_back();
            ASSERT_TRUE(inbound.seat(carrier, tag, close));
            came.insert({tag.id.low, tag.epoch});
            told.erase({tag.id.low, tag.epoch});  // it is here again
          }
          break;
        case 2:
          if (!carriers.empty()) {
            TestCarrier& carrier = carriers[below(static_cast<unsigned>(carriers.size()))];
            if (carrier.inbound) {
              inbound.end(carrier);
              close(carrier);
            }
          }
          break;
        case 3:
          if (below(4) != 0) break;
          if (auto& fenced = fences[tag.id.low]; inbound.fence(tag, close) || true)
            fenced = std::max(fenced, tag.epoch);
          break;
        case 4:
          if (!closing.empty()) {
            inbound.rested(*closing.back());
            closing.pop_back();
          }
          break;
        default:
          poll();
          break;
      }
    }
    for (TestCarrier* const carrier : closing) inbound.rested(*carrier);
    for (TestCarrier& carrier : carriers) inbound.left(carrier);
    while (!events.empty()) poll();
    for (const auto& [id, epoch] : fences) {
      EXPECT_TRUE(inbound.fence({id, epoch}, close)) << "nothing is left to wait for";
      EXPECT_FALSE(inbound.welcome({id, epoch}));
    }
    for (const auto& key : came) {
      const auto fenced = fences.find(key.first);
      const bool shut_out = fenced != fences.end() && key.second <= fenced->second;
      EXPECT_LE(told[key], 1);
      EXPECT_GE(told[key], shut_out ? 0 : 1) << key.first << " epoch " << key.second;
    }
  }
}

}  // namespace
}  // namespace railyard::fabric
