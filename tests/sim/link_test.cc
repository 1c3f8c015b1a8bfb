// Links of the simulated rail: how they stand, break, end and are fenced, and what each failure of a rail does to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "fabric/sim/rail.hpp"
#include "two_rails.hpp"

namespace railyard::fabric::sim {
namespace {

using Kind = Event::Kind;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

constexpr RailState kBlackHole{Carry::nothing, Carry::nothing};
constexpr RailState kErrors{Carry::errors, Carry::errors};
constexpr RailState kLate{Carry::late, Carry::late};
constexpr RailState kUp{};
constexpr std::uint32_t kA = 0;
constexpr std::uint32_t kB = 1;

std::vector<Kind> kinds_of(const std::vector<Event>& events) {
  std::vector<Kind> kinds;
  for (const Event& event : events) kinds.push_back(event.kind);
  return kinds;
}

/// What is there now, without letting time pass.
std::vector<Event> now(Rail& rail) {
  std::vector<Event> all;
  TwoRails::collect(rail, all);
  return all;
}

/// A link of A to B under a name of its own, besides those that every TwoRails has, and memory at both ends.
struct Linked {
  static constexpr std::size_t kBytes = 8192;

  explicit Linked(const std::function<void(RailOptions&)>& change = {}) : Linked(TwoRails::make_options(change, 1)) {}
  explicit Linked(const FabricOptions& options) : world(options), regions(world, kBytes) {
    for (std::size_t i = 0; i < kBytes; ++i) regions.here[i] = static_cast<std::byte>(i % 251 + 1);
    link = connect(kEpoch);
    world.fabric.advance(options.rails[0].latency);
  }

  RemoteId connect(std::uint32_t epoch) { return world.a->connect(world.b->address(), {kLink, epoch}).value(); }
  Post write(PostContext& context, WriteOptions options = {.with_immediate = true}, std::size_t bytes = kBytes) {
    return world.a->write({link, regions.there_registration.remote_base, regions.there_registration.key},
                          regions.local(0, bytes), options, &context);
  }
  Post read(PostContext& context) {
    return world.a->read({link, regions.there_registration.remote_base, regions.there_registration.key},
                         regions.local(0, kBytes), &context);
  }
  Post send(PostContext& context) { return world.a->send(link, regions.local(0, 64), &context); }
  bool landed() const { return regions.there == regions.here; }
  bool untouched() const { return regions.there == std::vector<std::byte>(kBytes); }
  SimFabric& fabric() { return world.fabric; }
  Rail& a() { return *world.a; }
  Rail& b() { return *world.b; }

  static constexpr std::uint64_t kLink = 77;
  static constexpr std::uint32_t kEpoch = 1;
  TwoRails world;
  Regions regions;
  RemoteId link = 0;
};

TEST(SimLink, StandsAfterAWhileAndIsBusyUntilThen) {
  Linked rails;
  PostContext context;
  rails.link = rails.connect(2);
  EXPECT_EQ(rails.send(context), Post::busy);
  EXPECT_EQ(rails.write(context), Post::busy);
  rails.fabric().advance(RailOptions{}.latency);
  EXPECT_EQ(rails.send(context), Post::posted);
}

TEST(SimLink, SeveralLinksBetweenTwoRailsAreApart) {
  Linked rails;
  const RemoteId other = rails.world.a->connect(rails.b().address(), {78, 1}).value();
  EXPECT_NE(other, rails.link);
  rails.fabric().advance(RailOptions{}.latency);
  rails.a().disconnect(rails.link);
  PostContext context;
  EXPECT_EQ(rails.send(context), Post::failed);
  EXPECT_EQ(rails.a().send(other, rails.regions.local(0, 8), &context), Post::posted);
}

TEST(SimLink, ANumberIsUsedAgainAndOldNewsDoesNotReachTheNewLink) {
  Linked rails;
  PostContext context;
  rails.fabric().set_state(kB, kErrors);
  ASSERT_EQ(rails.write(context, {.delivery_complete = true}), Post::posted);
  rails.fabric().advance(10'000'000);  // the news waits in the queue
  rails.fabric().set_state(kB, kUp);
  rails.a().disconnect(rails.link);
  const RemoteId again = rails.connect(2);
  EXPECT_EQ(again, rails.link);
  EXPECT_THAT(kinds_of(rails.world.settle(rails.a())), ElementsAre(Kind::failed));
  EXPECT_EQ(rails.send(context), Post::posted);
}

TEST(SimLink, ConnectingToAClosedRailIsRefused) {
  Linked rails;
  rails.b().revoke(rails.regions.there_registration);
  rails.regions.gone = true;
  rails.world.b.reset();
  rails.world.settle(rails.a());
  const auto address = rails.world.a->address();
  auto there = address;
  there[4] = std::byte{kB};
  const RemoteId again = rails.a().connect(there, {5, 1}).value();
  const std::int64_t before = rails.fabric().now();
  const Event event = rails.world.next(rails.a());
  EXPECT_EQ(event.kind, Kind::lost);
  EXPECT_TRUE(event.refused);
  EXPECT_EQ(event.remote, again);
  EXPECT_EQ(rails.fabric().now() - before, RailOptions{}.latency);
}

TEST(SimLink, ConnectingThroughABlackHoleIsSilentUntilItIsMended) {
  for (const std::uint32_t dark : {kA, kB}) {
    Linked rails;
    PostContext context;
    rails.fabric().set_state(dark, kBlackHole);
    rails.link = rails.connect(2);
    rails.fabric().advance(RailOptions{}.connect_retry / 2);
    EXPECT_TRUE(now(rails.a()).empty());
    EXPECT_EQ(rails.send(context), Post::busy);
    rails.fabric().set_state(dark, kUp);
    rails.fabric().advance(RailOptions{}.connect_retry);
    EXPECT_EQ(rails.send(context), Post::posted);
  }
}

TEST(SimLink, ConnectingOverARailThatErrsIsLost) {
  for (const std::uint32_t dark : {kA, kB}) {
    Linked rails;
    rails.fabric().set_state(dark, kErrors);
    const RemoteId link = rails.connect(2);
    const Event event = rails.world.next(rails.a());
    EXPECT_EQ(event.kind, Kind::lost);
    EXPECT_EQ(event.remote, link);
    EXPECT_FALSE(event.refused);
  }
}

TEST(SimLink, DisconnectGivesEveryContextBackOnce) {
  Linked rails;
  std::array<PostContext, 12> contexts;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const Post answer = i % 3 == 0   ? rails.write(contexts[i])
                        : i % 3 == 1 ? rails.read(contexts[i])
                                     : rails.send(contexts[i]);
    ASSERT_EQ(answer, Post::posted);
  }
  rails.fabric().advance(2'500);  // some have left, some have not
  rails.a().disconnect(rails.link);
  std::vector<PostContext*> back;
  for (const Event& event : rails.world.settle(rails.a())) back.push_back(event.context);
  std::vector<PostContext*> all;
  for (PostContext& context : contexts) all.push_back(&context);
  EXPECT_THAT(back, testing::UnorderedElementsAreArray(all));
  EXPECT_EQ(rails.fabric().statistics().violations(), 0U);
}

TEST(SimLink, PacketsOutlastTheirLink) {
  Linked rails;
  PostContext context;
  ASSERT_EQ(rails.write(context), Post::posted);
  rails.fabric().advance(1'500);  // all chunks have left, none has arrived
  ASSERT_TRUE(rails.untouched());
  rails.a().disconnect(rails.link);
  EXPECT_THAT(kinds_of(rails.world.settle(rails.a())), testing::Contains(testing::AnyOf(Kind::failed, Kind::written)));
  EXPECT_TRUE(rails.landed()) << "this is what a fence is for";
}

TEST(SimLink, WhatHasNotLeftStaysWhenTheLinkEnds) {
  Linked rails([](RailOptions& rail) { rail.bandwidth = 1e9; });
  PostContext context;
  ASSERT_EQ(rails.write(context), Post::posted);
  rails.fabric().advance(1'000);  // the first of two chunks is leaving
  rails.a().disconnect(rails.link);
  std::ranges::fill(rails.regions.here, std::byte{0});
  EXPECT_THAT(kinds_of(rails.world.settle(rails.a())), ElementsAre(Kind::failed));
  EXPECT_THAT(kinds_of(now(rails.b())), testing::Not(testing::Contains(Kind::landed)));
  EXPECT_FALSE(rails.untouched());
  EXPECT_EQ(rails.regions.there.back(), std::byte{0});
}

TEST(SimLink, AReadPutsNothingInPlaceAfterDisconnect) {
  Linked rails;
  PostContext context;
  std::ranges::fill(rails.regions.there, std::byte{9});
  const auto before = rails.regions.here;
  ASSERT_EQ(rails.read(context), Post::posted);
  rails.fabric().advance(RailOptions{}.latency + 1'000);  // the answer is on its way
  rails.a().disconnect(rails.link);
  EXPECT_THAT(kinds_of(rails.world.settle(rails.a())), ElementsAre(Kind::failed));
  EXPECT_EQ(rails.regions.here, before);
}

TEST(SimLink, TheTargetIsToldThatALinkHasEndedUnlessItFencedIt) {
  for (const bool fenced : {false, true}) {
    Linked rails;
    if (fenced) {
      EXPECT_TRUE(rails.b().fence({Linked::kLink, 1}));
    }
    rails.a().disconnect(rails.link);
    const auto events = rails.world.settle(rails.b());
    if (fenced) {
      EXPECT_TRUE(events.empty());
      continue;
    }
    ASSERT_THAT(kinds_of(events), ElementsAre(Kind::left));
    EXPECT_EQ(events[0].link.id, Linked::kLink);
    EXPECT_EQ(events[0].link.epoch, 1U);
  }
}

TEST(SimFence, KeepsWhatIsOnItsWayFromLanding) {
  for (const bool works : {true, false}) {
    FabricOptions options = TwoRails::make_options({}, 1);
    options.fence_works = works;
    Linked rails(options);
    PostContext context;
    ASSERT_EQ(rails.write(context), Post::posted);
    rails.fabric().advance(1'500);
    rails.a().disconnect(rails.link);
    EXPECT_TRUE(rails.b().fence({Linked::kLink, 1}));
    rails.world.settle(rails.a());
    EXPECT_EQ(rails.untouched(), works);
    EXPECT_EQ(rails.fabric().statistics().fenced > 0, works);
  }
}

TEST(SimFence, IsForItsLinkAndItsEpochsOnly) {
  Linked rails;
  PostContext context;
  ASSERT_EQ(rails.write(context), Post::posted);
  EXPECT_TRUE(rails.b().fence({Linked::kLink, 0}));
  EXPECT_TRUE(rails.b().fence({Linked::kLink + 1, 9}));
  rails.world.settle(rails.a());
  EXPECT_TRUE(rails.landed());
  EXPECT_EQ(rails.fabric().statistics().fenced, 0U);
}

TEST(SimFence, IsNotTrueBeforeWhatLandedWasPolled) {
  Linked rails;
  PostContext context;
  ASSERT_EQ(rails.write(context), Post::posted);
  rails.fabric().advance(50'000);
  ASSERT_TRUE(rails.landed());
  EXPECT_FALSE(rails.b().fence({Linked::kLink, 1}));
  EXPECT_THAT(kinds_of(now(rails.b())), ElementsAre(Kind::landed));
  EXPECT_TRUE(rails.b().fence({Linked::kLink, 1}));
}

TEST(SimFence, DiscardsMessagesThatWaitForAReceive) {
  Linked rails;
  PostContext context;
  ASSERT_EQ(rails.send(context), Post::posted);
  rails.fabric().advance(50'000);
  EXPECT_TRUE(rails.b().fence({Linked::kLink, 1}));
  std::vector<std::byte> buffer(64);
  PostContext receive;
  ASSERT_EQ(rails.b().receive(chunk(buffer), &receive), Post::posted);
  EXPECT_THAT(rails.world.settle(rails.b()), testing::IsEmpty());
}

TEST(SimFence, DiscardsWhatWaitsForAPoll) {
  Linked rails([](RailOptions& rail) { rail.progresses_alone = false; });
  PostContext context;
  ASSERT_EQ(rails.write(context), Post::posted);
  rails.fabric().advance(50'000);
  EXPECT_TRUE(rails.b().fence({Linked::kLink, 1}));
  EXPECT_TRUE(now(rails.b()).empty());
  EXPECT_TRUE(rails.untouched());
}

TEST(SimFence, RefusesSuchEpochsAndNoOthers) {
  Linked rails;
  EXPECT_TRUE(rails.b().fence({Linked::kLink, 3}));
  const Event closed = rails.world.next(rails.a());  // the target has closed its end of the link that stood
  EXPECT_EQ(closed.kind, Kind::lost);
  EXPECT_EQ(closed.remote, rails.link);
  const RemoteId old = rails.connect(3);
  const Event event = rails.world.next(rails.a());
  EXPECT_EQ(event.kind, Kind::lost);
  EXPECT_EQ(event.remote, old);
  EXPECT_FALSE(event.refused);
  rails.link = rails.connect(4);
  rails.world.settle(rails.a());
  PostContext context;
  ASSERT_EQ(rails.write(context), Post::posted);
  rails.world.settle(rails.a());
  EXPECT_TRUE(rails.landed());
}

TEST(SimFence, WhereItIsTimedNothingOlderThanThePacketLifetimeLands) {
  constexpr std::int64_t kLifetime = 3'000'000;
  for (const std::int64_t age : {kLifetime - 100'000, kLifetime + 100'000}) {
    Linked rails([age](RailOptions& rail) {
      rail.fencing = Fencing::timed;
      rail.packet_lifetime = kLifetime;
      rail.hold_least = age;
      rail.hold_most = age;
    });
    EXPECT_EQ(rails.a().capabilities().fencing, Fencing::timed);
    EXPECT_EQ(rails.a().capabilities().packet_lifetime, kLifetime);
    PostContext context;
    rails.fabric().set_state(kA, kLate);
    ASSERT_EQ(rails.write(context), Post::posted);
    rails.fabric().advance(2'000);
    rails.a().disconnect(rails.link);
    EXPECT_TRUE(rails.b().fence({Linked::kLink, 1})) << "nothing has landed that was not polled";
    rails.fabric().advance(2 * kLifetime);
    EXPECT_EQ(rails.landed(), age < kLifetime);
    EXPECT_EQ(rails.untouched(), age > kLifetime);
  }
}

TEST(SimOutage, ARailThatErrsGivesContextsBackAndTheLinkIsLost) {
  for (const std::uint32_t dark : {kA, kB}) {
    Linked rails;
    PostContext context;
    rails.fabric().set_state(dark, kErrors);
    ASSERT_EQ(rails.write(context, {.delivery_complete = true}), Post::posted);
    const auto events = rails.world.settle(rails.a());
    EXPECT_THAT(kinds_of(events), UnorderedElementsAre(Kind::failed, Kind::lost));
    EXPECT_TRUE(rails.untouched());
    EXPECT_EQ(rails.write(context), Post::failed);
    EXPECT_THAT(rails.a().failure(), testing::HasSubstr("broken"));
    rails.a().disconnect(rails.link);
    EXPECT_TRUE(rails.world.settle(rails.a()).empty());
    EXPECT_EQ(rails.fabric().statistics().violations(), 0U);
  }
}

TEST(SimOutage, ABlackHoleSwallowsUntilTheLinkIsDisconnected) {
  for (const std::uint32_t dark : {kA, kB}) {
    Linked rails;
    std::array<PostContext, 2> contexts;
    rails.fabric().set_state(dark, kBlackHole);
    ASSERT_EQ(rails.write(contexts[0], {.delivery_complete = true}), Post::posted);
    ASSERT_EQ(rails.read(contexts[1]), Post::posted);
    EXPECT_TRUE(rails.world.settle(rails.a()).empty());
    rails.fabric().set_state(dark, kUp);
    EXPECT_TRUE(rails.world.settle(rails.a()).empty()) << "what is gone is gone";
    rails.a().disconnect(rails.link);
    EXPECT_THAT(kinds_of(rails.world.settle(rails.a())), ElementsAre(Kind::failed, Kind::failed));
    EXPECT_TRUE(rails.untouched());
  }
}

TEST(SimOutage, ALinkThatLostAPacketCarriesNothingMore) {
  Linked rails;
  std::array<PostContext, 2> contexts;
  rails.fabric().set_state(kB, kBlackHole);
  ASSERT_EQ(rails.send(contexts[0]), Post::posted);
  rails.fabric().advance(100'000);
  rails.fabric().set_state(kB, kUp);
  ASSERT_EQ(rails.write(contexts[1], {.delivery_complete = true}), Post::posted);
  rails.world.settle(rails.a());
  EXPECT_TRUE(rails.untouched()) << "the link is reliable or it is dead";
}

TEST(SimOutage, ALinkThatLostAPacketIsToldBrokenInTheEnd) {
  Linked rails([](RailOptions& rail) { rail.give_up = 5'000'000; });
  PostContext context;
  rails.fabric().set_state(kB, kBlackHole);
  ASSERT_EQ(rails.write(context, {.delivery_complete = true}), Post::posted);
  rails.fabric().advance(4'000'000);
  EXPECT_TRUE(now(rails.a()).empty());
  rails.fabric().advance(2'000'000);
  EXPECT_THAT(kinds_of(now(rails.a())), testing::Contains(Kind::lost));
}

TEST(SimOutage, ARailThatRetransmitsGetsThroughWhenTheHoleIsMended) {
  for (const std::uint32_t dark : {kA, kB}) {
    for (const bool disconnected : {false, true}) {
      Linked rails([](RailOptions& rail) { rail.retransmits = true; });
      PostContext context;
      rails.fabric().set_state(dark, kBlackHole);
      ASSERT_EQ(rails.write(context), Post::posted);
      rails.fabric().advance(3'000'000);
      EXPECT_TRUE(rails.untouched());
      if (disconnected) rails.a().disconnect(rails.link);
      rails.fabric().set_state(dark, kUp);
      rails.world.settle(rails.a());
      EXPECT_TRUE(rails.landed()) << "also when its link is gone: a socket's last bytes outlast it";
      EXPECT_GT(rails.fabric().statistics().retransmitted, 0U);
    }
  }
}

TEST(SimOutage, RetransmissionEndsInTheEnd) {
  Linked rails([](RailOptions& rail) { rail.retransmits = true; });
  PostContext context;
  rails.fabric().set_state(kB, kBlackHole);
  ASSERT_EQ(rails.write(context, {.delivery_complete = true}), Post::posted);
  rails.fabric().advance(1'000'000'000);
  rails.fabric().set_state(kB, kUp);
  rails.world.settle(rails.a());
  EXPECT_TRUE(rails.untouched());
}

TEST(SimOutage, APlainCompletionInABlackHoleIsTheRailsChoice) {
  for (const bool completes : {false, true}) {
    Linked rails([completes](RailOptions& rail) { rail.completes_unsent = completes; });
    PostContext context;
    rails.fabric().set_state(kA, kBlackHole);
    ASSERT_EQ(rails.send(context), Post::posted);
    EXPECT_EQ(rails.world.settle(rails.a()).size(), completes ? 1U : 0U);
  }
}

TEST(SimOutage, OneDirectionMayFailAlone) {
  // What A writes lands; that it did, A never learns.
  Linked rails;
  PostContext context;
  rails.fabric().set_state(kA, {Carry::everything, Carry::nothing});
  ASSERT_EQ(rails.write(context, {.with_immediate = true, .delivery_complete = true}), Post::posted);
  EXPECT_TRUE(rails.world.settle(rails.a()).empty());
  EXPECT_TRUE(rails.landed());
  EXPECT_THAT(kinds_of(now(rails.b())), ElementsAre(Kind::landed));
}

TEST(SimOutage, AnErrorMayTellOfWhatHasLanded) {
  Linked rails;
  PostContext context;
  rails.fabric().set_state(kA, {Carry::everything, Carry::errors});
  ASSERT_EQ(rails.write(context, {.delivery_complete = true}), Post::posted);
  EXPECT_THAT(kinds_of(rails.world.settle(rails.a())), testing::Contains(Kind::failed));
  EXPECT_TRUE(rails.landed());
}

TEST(SimOutage, HeldPacketsLandLateAlsoWhenTheLinkIsGone) {
  for (const std::uint32_t dark : {kA, kB}) {
    Linked rails;
    PostContext context;
    rails.fabric().set_state(dark, kLate);
    ASSERT_EQ(rails.write(context), Post::posted);
    rails.fabric().advance(100'000);
    rails.fabric().set_state(dark, kUp);
    rails.a().disconnect(rails.link);
    rails.fabric().advance(RailOptions{}.hold_least - 200'000);
    EXPECT_TRUE(rails.untouched());
    rails.fabric().advance(RailOptions{}.hold_most);
    EXPECT_TRUE(rails.landed());
    EXPECT_GT(rails.fabric().statistics().held, 0U);
  }
}

TEST(SimOutage, ALostCompletionComesOnlyByDisconnect) {
  Linked rails([](RailOptions& rail) { rail.lost_completion_probability = 1; });
  PostContext context;
  ASSERT_EQ(rails.write(context), Post::posted);
  EXPECT_TRUE(rails.world.settle(rails.a()).empty());
  EXPECT_TRUE(rails.landed());
  rails.a().disconnect(rails.link);
  EXPECT_THAT(kinds_of(rails.world.settle(rails.a())), ElementsAre(Kind::failed));
  EXPECT_EQ(rails.fabric().statistics().completions_lost, 1U);
}

TEST(SimOutage, ChangesHappenAtTheirTime) {
  FabricOptions options = TwoRails::make_options([](RailOptions& rail) { rail.knows_interface = true; }, 1);
  options.changes = {{2'000'000, kA, kUp}, {1'000'000, kA, kErrors}, {3'000'000, kB, kLate}};
  Linked rails(options);
  rails.fabric().advance(1'000'000);
  EXPECT_EQ(rails.fabric().state(kA), kErrors);
  EXPECT_THAT(kinds_of(now(rails.a())), ElementsAre(Kind::rail_down));
  rails.fabric().advance(1'000'000);
  EXPECT_EQ(rails.fabric().state(kA), kUp);
  EXPECT_THAT(kinds_of(now(rails.a())), ElementsAre(Kind::rail_up));
  rails.fabric().advance(1'000'000);
  EXPECT_EQ(rails.fabric().state(kB), kLate);
  EXPECT_TRUE(now(rails.b()).empty()) << "late is not down";
}

TEST(SimOutage, ARailThatDoesNotKnowItsInterfaceSaysNothing) {
  Linked rails;
  rails.fabric().set_state(kA, kBlackHole);
  EXPECT_TRUE(now(rails.a()).empty());
}

TEST(SimDeath, WhatTheDeadHadSentMayLandAndItsLinksBreak) {
  Linked rails;
  PostContext context;
  ASSERT_EQ(rails.write(context), Post::posted);
  rails.fabric().advance(1'500);
  rails.fabric().kill(0, Death::told);
  EXPECT_FALSE(rails.fabric().alive(0));
  EXPECT_TRUE(rails.fabric().alive(1));
  const auto events = rails.world.settle(rails.b());
  EXPECT_TRUE(rails.landed());
  // B's own link to A, and two of A's to B.
  EXPECT_THAT(kinds_of(events), UnorderedElementsAre(Kind::landed, Kind::lost, Kind::left, Kind::left));
  EXPECT_THAT(kinds_of(now(rails.a())), UnorderedElementsAre(Kind::failed)) << "nothing waits for it in vain";
  EXPECT_TRUE(now(rails.a()).empty());
  EXPECT_EQ(rails.send(context), Post::failed);
}

TEST(SimDeath, ASilentOneTellsNobody) {
  Linked rails;
  std::array<PostContext, 2> contexts;
  rails.fabric().kill(1, Death::silent);
  ASSERT_EQ(rails.write(contexts[0], {.delivery_complete = true}), Post::posted);
  rails.fabric().advance(10'000'000);
  EXPECT_TRUE(now(rails.a()).empty());
  EXPECT_TRUE(rails.untouched());
  rails.link = rails.connect(2);
  rails.fabric().advance(10'000'000'000);
  EXPECT_TRUE(now(rails.a()).empty());
  EXPECT_EQ(rails.send(contexts[1]), Post::busy);
}

TEST(SimDeath, ATimedOneComesAtItsTime) {
  FabricOptions options = TwoRails::make_options({}, 1);
  options.deaths = {{5'000'000, 1, Death::told}};
  Linked rails(options);
  rails.fabric().advance(4'000'000);
  EXPECT_TRUE(rails.fabric().alive(1));
  rails.fabric().advance(1'100'000);
  EXPECT_FALSE(rails.fabric().alive(1));
  PostContext context;
  EXPECT_EQ(rails.send(context), Post::failed);
  rails.link = rails.connect(2);
  rails.fabric().advance(10'000);
  const auto events = now(rails.a());
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().kind, Kind::lost);
  EXPECT_TRUE(events.back().refused);
}

}  // namespace
}  // namespace railyard::fabric::sim
