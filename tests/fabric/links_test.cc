/// The links of a connected rail, without a driver (fabric/links.hpp).
#include "fabric/links.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "fabric/in_flight.hpp"

namespace railyard::fabric {
namespace {

struct TestLink : Link {
  int own = 0;  ///< what a driver would add
  InFlight in_flight;
};

class LinksTest : public ::testing::Test {
 protected:
  std::vector<Event> poll() {
    std::array<Event, 16> room;
    const std::size_t count = events_.take(room);
    return {room.begin(), room.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  PendingEvents events_;
  Links<TestLink> links_{events_};
};

TEST_F(LinksTest, TakePostsOnlyWhileTheyStand) {
  TestLink& link = links_.take({7, 1});
  EXPECT_EQ(links_.find(link.remote), &link);
  EXPECT_EQ(links_.ready(link.remote), nullptr) << "it connects";
  EXPECT_EQ(links_.connecting(), 1U);
  links_.stands(link);
  EXPECT_EQ(links_.ready(link.remote), &link);
  EXPECT_EQ(links_.connecting(), 0U);
  links_.lose(link, {.error = 5});
  EXPECT_EQ(links_.ready(link.remote), nullptr) << "it is lost";
  EXPECT_EQ(links_.find(link.remote), &link) << "until its owner has disconnected it";
}

TEST_F(LinksTest, UnknownOnesAreNotFound) {
  EXPECT_EQ(links_.find(0), nullptr);
  EXPECT_EQ(links_.ready(0), nullptr);
  links_.take({});
  EXPECT_EQ(links_.find(1), nullptr);
  EXPECT_EQ(links_.ready(UINT32_MAX), nullptr);
}

TEST_F(LinksTest, AreToldAsLostOnceWithWhatIsKnown) {
  TestLink& link = links_.take({7, 1});
  EXPECT_TRUE(links_.lose(link, {.error = 5, .unwanted = true, .blame = Blame::unknown}));
  EXPECT_FALSE(links_.lose(link, {.error = 6}));
  const auto events = poll();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, Event::Kind::lost);
  EXPECT_EQ(events[0].remote, link.remote);
  EXPECT_EQ(events[0].error, 5);
  EXPECT_TRUE(events[0].unwanted);
  EXPECT_FALSE(events[0].refused);
  EXPECT_EQ(events[0].blame, Blame::unknown);
}

TEST_F(LinksTest, ALossIsProofOfDeathOnlyWhereItSaysSo) {
  TestLink& gone = links_.take({1});
  TestLink& silent = links_.take({2});
  links_.lose(gone, {.error = 5, .refused = true});
  links_.lose(silent, {.error = 5, .unverified = true});
  EXPECT_TRUE(gone.refused);
  EXPECT_FALSE(silent.refused);
}

TEST_F(LinksTest, ALinkThatIsLostStandsNoMore) {
  TestLink& link = links_.take({7, 1});
  links_.lose(link, {.error = 5});
  links_.stands(link);  // the driver's last word was on its way
  EXPECT_EQ(links_.ready(link.remote), nullptr);
  EXPECT_TRUE(link.lost());
}

TEST_F(LinksTest, WhoHasDisconnectedHearsOfNoLoss) {
  TestLink& link = links_.take({7, 1});
  links_.lose(link, {.error = 5});
  links_.release(link);
  EXPECT_TRUE(poll().empty());
}

TEST_F(LinksTest, ASlotIsUsedAgainByALinkMadeAfresh) {
  TestLink& first = links_.take({7, 1});
  const RemoteId remote = first.remote;
  EXPECT_EQ(first.generation, 1U);
  first.own = 3;
  links_.stands(first);
  links_.release(first);
  EXPECT_EQ(links_.find(remote), nullptr);
  EXPECT_EQ(links_.ready(remote), nullptr);
  TestLink& second = links_.take({7, 2});
  EXPECT_EQ(second.remote, remote);
  EXPECT_EQ(second.generation, 2U) << "who keeps the number of a slot tells its links apart";
  EXPECT_EQ(second.own, 0);
  EXPECT_TRUE(second.connecting());
  EXPECT_EQ(links_.ready(remote), nullptr);
}

TEST_F(LinksTest, ARetiringLinkKeepsItsSlotUntilItsContextsAreBack) {
  TestLink& link = links_.take({7, 1});
  const RemoteId remote = link.remote;
  PostContext context;
  link.in_flight.add(&context);
  links_.stands(link);
  links_.retire(link);
  EXPECT_EQ(links_.find(remote), nullptr);
  EXPECT_EQ(links_[remote], &link) << "its contexts still find it";
  EXPECT_NE(links_.take({8}).remote, remote);
  EXPECT_FALSE(links_.lose(link, {.error = 5})) << "nobody is there to be told";
  link.in_flight.end(events_, 9);
  links_.release(link);
  const auto events = poll();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, Event::Kind::failed);
  EXPECT_EQ(events[0].context, &context);
  EXPECT_EQ(events[0].error, 9);
  EXPECT_EQ(links_.take({9}).remote, remote);
}

TEST_F(LinksTest, CountThoseThatConnectWhateverBecomesOfThem) {
  TestLink& a = links_.take({1});
  TestLink& b = links_.take({2});
  TestLink& c = links_.take({3});
  EXPECT_EQ(links_.connecting(), 3U);
  links_.stands(a);
  links_.stands(a);
  links_.lose(b, {});
  links_.release(c);
  EXPECT_EQ(links_.connecting(), 0U);
  links_.release(a);
  links_.release(b);
  EXPECT_EQ(links_.connecting(), 0U);
}

TEST_F(LinksTest, TheFacingLinkIsTheOneThatNamesTheOther) {
  const LinkTag ours{1, 0, 2};
  TestLink& link = links_.take(ours);
  links_.take({3, 0, 4});
  const auto any = [](const TestLink&) { return true; };
  EXPECT_EQ(links_.facing({2, 0, 1}, any), &link);
  EXPECT_EQ(links_.facing({2, 0, 3}, any), nullptr) << "that one faces another";
  EXPECT_EQ(links_.facing({2, 0, {}}, any), nullptr) << "it faces nobody";
  EXPECT_EQ(links_.facing({2, 0, 1}, [](const TestLink&) { return false; }), nullptr) << "of another peer";
  links_.lose(link, {});
  EXPECT_EQ(links_.facing({2, 0, 1}, any), nullptr) << "it is lost";
}

TEST_F(LinksTest, AStoppedRailHasNone) {
  TestLink& link = links_.take({1});
  const RemoteId remote = link.remote;
  links_.stands(link);
  links_.take({2});
  links_.clear();
  EXPECT_EQ(links_.find(remote), nullptr);
  EXPECT_EQ(links_.ready(remote), nullptr);
  EXPECT_EQ(links_.connecting(), 0U);
  std::size_t count = 0;
  links_.each([&](TestLink&) { ++count; });
  EXPECT_EQ(count, 0U);
}

}  // namespace
}  // namespace railyard::fabric
