// Several flows on one route, over rails that the test plays. T8: what is late, twice there or for nobody is dropped
// and counted, and the neighbours do not notice. T9: who is told of a loss, how often, and in which words.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "engine_fixture.hpp"

namespace railyard::transport {
namespace {

class Recorder final : public Inbox {
 public:
  bool on_message(const wire::Message& message, std::span<const std::byte>) override {
    messages.push_back(message.number);
    if (awaited) flow->receiver.await_report();
    return true;
  }
  void on_completed() override { ++completions; }
  void on_failed() override { ++failures; }
  std::vector<std::uint32_t> messages;
  Flow* flow = nullptr;  ///< the last that was opened
  bool awaited = true;   ///< the peer waits for each acknowledgement
  int completions = 0;
  int failures = 0;
};

class SharedRoute : public ::testing::Test {
 protected:
  void open(std::size_t rails, const Settings& settings = {}) {
    EngineParts parts;
    parts.settings = settings;
    parts.clock = &clock_;
    parts.size = 0;
    for (std::size_t i = 0; i < rails; ++i) {
      auto rail = std::make_unique<ScriptRail>();
      rails_.push_back(rail.get());
      parts.rails.push_back(std::move(rail));
    }
    parts.find_peer = [rails](int) -> Result<PeerAddress> {
      static const std::array<std::byte, 1> kAddress{};
      PeerAddress peer;
      for (std::size_t i = 0; i < rails; ++i) peer.rails.push_back({"script", kAddress});
      return peer;
    };
    auto engine = Engine::open(std::move(parts));
    ASSERT_TRUE(engine) << engine.error().text();
    engine_ = std::move(*engine);
    route_ = open_route(1);
  }
  Route* open_route(std::uint64_t instance) {
    RouteParts parts;
    parts.peer = 0;
    parts.who = "peer x";
    parts.name = {{instance, 1U << 16U}, {instance, 2U << 16U}};
    parts.instance = instance;
    auto route = engine_->peers().open_route(parts);
    EXPECT_TRUE(route) << route.error().text();
    return *route;
  }
  Flow* open_flow(Recorder& inbox, std::uint32_t session, Route* route = nullptr) {
    const auto id = engine_->peers().flows().reserve();
    EXPECT_TRUE(id);
    return inbox.flow =
               engine_->peers().open_flow({route != nullptr ? route : route_, *id,
                                           static_cast<std::uint16_t>(1000 + *id), session + 1, session, &inbox});
  }
  static std::vector<std::byte> frame(std::uint16_t flow, std::uint32_t session, std::uint32_t sequence,
                                      std::uint32_t number, std::uint32_t acknowledged = 0) {
    std::vector<std::byte> bytes(wire::kFrameBytes);
    std::uint32_t used = wire::kRecordsAt;
    wire::FrameWriter::append(bytes.data(), used, {wire::RecordKind::message, 1, 0, number, 0});
    wire::FrameHeader header;
    header.flow = flow;
    header.records = 1;
    header.session = session;
    header.sequence = sequence;
    header.acknowledged = acknowledged;
    header.limit = acknowledged + kFirstGrant;
    header.bytes = used;
    std::memcpy(bytes.data(), &header, sizeof header);
    bytes.resize(used);
    return bytes;
  }
  bool send(Flow& flow) {
    std::uint64_t number = 0;
    return engine_->submissions().try_message(flow, {1, 0, 0, {}}, number);
  }
  bool write(Flow& flow, std::size_t bytes) {
    source_.resize(std::max(bytes, source_.size()));
    Bulk bulk;
    bulk.local = source_.data();
    bulk.bytes = bytes;
    bulk.remote = {7, keys_};
    std::uint64_t number = 0;
    return engine_->submissions().try_write(flow, bulk, MessageRecord{1, 0, 0, {}}, number);
  }
  void pass(int times = 4) {
    for (int i = 0; i < times; ++i) engine_->progress();
  }

  StillClock clock_;
  std::vector<ScriptRail*> rails_;
  std::unique_ptr<Engine> engine_;
  Route* route_ = nullptr;
  std::array<RemoteKey, 8> keys_{};
  std::vector<std::byte> source_;
  Recorder one_;
  Recorder two_;
};

TEST_F(SharedRoute, T8WhatComesForAClosedFlowIsDroppedAndCountedAndItsNeighbourGoesOn) {
  open(1);
  Flow* const closed = open_flow(one_, 100);
  Flow* const neighbour = open_flow(two_, 200);
  const std::uint16_t id = closed->id;
  engine_->close_flow(*closed);
  pass();
  const std::uint64_t before = engine_->statistics().dropped_stale;
  rails_[0]->deliver(frame(id, 100, 0, 1));
  rails_[0]->land(wire::Immediate{wire::Immediate::kChunk, id, 0}.pack());
  rails_[0]->deliver(frame(neighbour->id, 200, 0, 2));
  rails_[0]->deliver(frame(9999, 200, 0, 3));
  rails_[0]->land(wire::Immediate{wire::Immediate::kChunk, 9999, 0}.pack());
  pass();
  EXPECT_EQ(engine_->statistics().dropped_stale - before, 4U);
  EXPECT_TRUE(one_.messages.empty());
  EXPECT_EQ(two_.messages, std::vector<std::uint32_t>{2});
  EXPECT_EQ(two_.failures, 0);
}

TEST_F(SharedRoute, T8AnIdThatIsUsedAgainDoesNotTakeWhatWasForItsOldFlow) {
  open(1);
  // All ids are in use but two: the second one comes back at once.
  std::vector<std::uint16_t> ids;
  while (auto id = engine_->peers().flows().reserve()) ids.push_back(*id);
  engine_->peers().flows().release(ids[0]);
  Recorder neighbour;
  open_flow(neighbour, 50);  // keeps the route
  engine_->peers().flows().release(ids[1]);
  Flow* const old = open_flow(one_, 100);
  const std::uint16_t id = old->id;
  rails_[0]->deliver(frame(id, 100, 0, 1));
  pass();
  EXPECT_EQ(one_.messages.size(), 1U);
  engine_->close_flow(*old);
  pass();
  Flow* const fresh = open_flow(two_, 300);
  ASSERT_EQ(fresh->id, id);
  const std::uint64_t before = engine_->statistics().dropped_stale;
  rails_[0]->deliver(frame(id, 100, 0, 7));  // twice there
  rails_[0]->deliver(frame(id, 100, 1, 8));  // late
  pass();
  EXPECT_EQ(engine_->statistics().dropped_stale - before, 2U);
  EXPECT_TRUE(two_.messages.empty());
  rails_[0]->deliver(frame(id, 300, 0, 9));
  rails_[0]->deliver(frame(id, 300, 0, 9));
  pass();
  EXPECT_EQ(two_.messages, std::vector<std::uint32_t>{9}) << "once, however often it comes";
}

TEST_F(SharedRoute, T8AnImmediateFurtherAheadThanAnyGrantIsNotTaken) {
  // An immediate says no session: what an old flow of the same id had under way must not move the new one's window.
  open(1);
  Flow* const flow = open_flow(one_, 100);
  const std::uint64_t before = engine_->statistics().dropped_stale + engine_->statistics().dropped_malformed;
  rails_[0]->land(wire::Immediate{wire::Immediate::kChunk, flow->id, 3000}.pack());
  rails_[0]->land(wire::Immediate{wire::Immediate::kChunk, flow->id, kFirstGrant}.pack());
  pass();
  EXPECT_EQ(engine_->statistics().dropped_stale + engine_->statistics().dropped_malformed - before, 2U);
  EXPECT_FALSE(flow->receiver.has_arrived(3000));
}

TEST_F(SharedRoute, T8AFlowThatCloseWithOperationsUnderWayKeepsItsIdUntilTheRailHasLetGo) {
  open(1);
  Flow* const leaving = open_flow(one_, 100);
  Flow* const neighbour = open_flow(two_, 200);
  rails_[0]->complete_at_once = false;
  ASSERT_TRUE(write(*leaving, 10'000));
  ASSERT_TRUE(write(*neighbour, 10'000));
  pass();
  ASSERT_GE(rails_[0]->held.size(), 2U);
  engine_->close_flow(*leaving);
  pass();
  EXPECT_EQ(engine_->peers().flows().all().size(), 2U) << "the rail still holds what points to it";
  EXPECT_EQ(rails_[0]->disconnects, 0U) << "the links are its neighbour's too";
  // The rail gives everything back, late.
  for (const auto& held : rails_[0]->held) {
    rails_[0]->events.push_back({fabric::Event::Kind::written, 0, 0, held.context, 0});
  }
  rails_[0]->held.clear();
  rails_[0]->complete_at_once = true;
  pass();
  EXPECT_EQ(engine_->peers().flows().all().size(), 1U);
  EXPECT_EQ(two_.failures, 0);
  const std::uint32_t segments = neighbour->sender.next_sequence();
  rails_[0]->deliver(frame(neighbour->id, 200, 0, 5, segments));
  pass();
  EXPECT_EQ(neighbour->outstanding.load(), 0U) << "what the neighbour had under way is complete";
  EXPECT_EQ(two_.messages, std::vector<std::uint32_t>{5});
}

TEST_F(SharedRoute, TheLinksGoWithTheLastFlowAndNotBefore) {
  open(2);
  Flow* const first = open_flow(one_, 100);
  Flow* const last = open_flow(two_, 200);
  engine_->close_flow(*first);
  pass();
  EXPECT_EQ(rails_[0]->disconnects + rails_[1]->disconnects, 0U);
  EXPECT_EQ(engine_->peers().registry().size(), 1U);
  engine_->close_flow(*last);
  pass();
  EXPECT_EQ(rails_[0]->disconnects + rails_[1]->disconnects, 2U);
  EXPECT_EQ(engine_->peers().registry().size(), 0U);
  EXPECT_EQ(engine_->peers().flows().all().size(), 0U);
}

// ---- What nobody waits for ----

TEST_F(SharedRoute, AnAcknowledgementThatNobodyWaitsForLeavesAfterAWhile) {
  open(1);
  one_.awaited = false;
  Flow* const flow = open_flow(one_, 100);
  rails_[0]->deliver(frame(flow->id, 100, 0, 1));
  pass();
  clock_.time += 49'000;
  pass();
  EXPECT_TRUE(rails_[0]->sends.empty()) << "a frame may come along";
  clock_.time += 1'000;
  pass();
  ASSERT_EQ(rails_[0]->sends.size(), 1U);
  EXPECT_EQ(rails_[0]->sends[0].header().kind, wire::FrameKind::acknowledge);
  EXPECT_EQ(rails_[0]->sends[0].header().acknowledged, 1U);
}

TEST_F(SharedRoute, AFrameTakesItAlong) {
  open(1);
  one_.awaited = false;
  Flow* const flow = open_flow(one_, 100);
  rails_[0]->deliver(frame(flow->id, 100, 0, 1));
  pass();
  ASSERT_TRUE(send(*flow));
  ASSERT_EQ(rails_[0]->sends.size(), 1U);
  EXPECT_EQ(rails_[0]->sends[0].header().acknowledged, 1U);
  clock_.time += 1'000'000;
  pass();
  EXPECT_EQ(rails_[0]->sends.size(), 1U) << "it was said";
}

TEST_F(SharedRoute, OneThatSomebodyWaitsForTakesTheOthersAlongAtOnce) {
  open(1);
  one_.awaited = false;
  Flow* const flow = open_flow(one_, 100);
  rails_[0]->deliver(frame(flow->id, 100, 0, 1));
  pass();
  one_.awaited = true;
  rails_[0]->deliver(frame(flow->id, 100, 1, 2));
  pass();
  ASSERT_EQ(rails_[0]->sends.size(), 1U);
  EXPECT_EQ(rails_[0]->sends[0].header().acknowledged, 2U);
}

TEST_F(SharedRoute, AChunkThatLandedIsAcknowledgedAtOnce) {
  open(1);
  one_.awaited = false;
  Flow* const flow = open_flow(one_, 100);
  rails_[0]->land(wire::Immediate{wire::Immediate::kChunk, flow->id, 0}.pack());
  pass();
  ASSERT_EQ(rails_[0]->sends.size(), 1U) << "its sender's window waits for it";
}

TEST_F(SharedRoute, ManyAcknowledgementsDoNotWait) {
  open(1);
  one_.awaited = false;
  Flow* const flow = open_flow(one_, 100);
  for (std::uint32_t i = 0; i < kFirstGrant; ++i) {
    rails_[0]->deliver(frame(flow->id, 100, i, i));
    pass();
  }
  EXPECT_FALSE(rails_[0]->sends.empty()) << "the sender would run out of grants";
}

TEST_F(SharedRoute, WhoeverGoesToSleepOwesNobodyAnything) {
  open(1);
  one_.awaited = false;
  Flow* const flow = open_flow(one_, 100);
  rails_[0]->deliver(frame(flow->id, 100, 0, 1));
  pass();
  ASSERT_TRUE(rails_[0]->sends.empty());
  const ProgressGuard hold(engine_->progress_lock());
  std::int64_t nanoseconds = INT64_MAX;
  static_cast<void>(engine_->waiting().begin_sleep(true, nanoseconds, -1));
  EXPECT_EQ(rails_[0]->sends.size(), 1U);
  engine_->waiting().end_sleep();
}

TEST_F(SharedRoute, FramesOfSeveralFlowsLeaveTogether) {
  open(1);
  Flow* const first = open_flow(one_, 100);
  Flow* const second = open_flow(two_, 200);
  const std::uint64_t before = rails_[0]->rings;
  engine_->begin_batch();
  ASSERT_TRUE(send(*first) && send(*second));
  EXPECT_EQ(rails_[0]->rings, before);
  engine_->end_batch();
  EXPECT_EQ(rails_[0]->rings, before + 1);
  EXPECT_EQ(rails_[0]->sends.size(), 2U);
}

// ---- The end ----

TEST_F(SharedRoute, AClosingRouteWaitsForAcknowledgementsThatItsRailsHold) {
  open(1);
  Flow* const flow = open_flow(one_, 100);
  rails_[0]->complete_at_once = false;
  rails_[0]->deliver(frame(flow->id, 100, 0, 1));
  pass();
  ASSERT_EQ(rails_[0]->held.size(), 1U) << "the acknowledgement";
  const auto held = rails_[0]->held;
  rails_[0]->held.clear();  // `disconnect` does not give it back yet
  engine_->close_flow(*flow);
  pass();
  EXPECT_EQ(engine_->peers().registry().size(), 1U) << "the acknowledgement points to its link";
  rails_[0]->events.push_back({fabric::Event::Kind::failed, 0, 0, held[0].context, 125});
  pass();
  EXPECT_EQ(engine_->peers().registry().size(), 0U);
}

/// The peer would wait for the acknowledgement, find that other flows are answered, and blame the link.
TEST_F(SharedRoute, AFlowThatClosesSaysFirstWhatHasArrived) {
  open(1);
  Flow* const flow = open_flow(one_, 100);
  open_flow(two_, 200);
  rails_[0]->deliver(frame(flow->id, 100, 0, 1));
  pass(1);
  ASSERT_EQ(one_.messages.size(), 1U);
  ASSERT_TRUE(rails_[0]->sends.empty()) << "the acknowledgement waits for a frame to ride on";
  engine_->close_flow(*flow);
  ASSERT_EQ(rails_[0]->sends.size(), 1U);
  EXPECT_EQ(rails_[0]->sends[0].header().acknowledged, 1U);
}

TEST_F(SharedRoute, FramesThatAFailedFlowHeldAreUsedAgain) {
  open(1);
  constexpr std::uint32_t kFlows = 100;
  int registrations = 0;
  for (std::uint32_t i = 0; i < kFlows; ++i) {
    Flow* const flow = open_flow(one_, 1000 + i);
    // All but the first: they are held until that comes.
    for (std::uint32_t sequence = 1; sequence < kFirstGrant; ++sequence) {
      rails_[0]->deliver(frame(flow->id, 1000 + i, sequence, 1));
      pass(1);
    }
    engine_->completions().fail(*flow, Error(Status::peer_lost, "a test"));
    if (i == 10) registrations = rails_[0]->registrations;
  }
  EXPECT_EQ(rails_[0]->registrations, registrations) << "memory for more and more of them was registered";
}

TEST_F(SharedRoute, ARailThatHasDiedCostsANewRouteItsLinkAlone) {
  open(2);
  rails_[1]->dead = true;
  Recorder elsewhere;
  Route* const route = open_route(2);
  ASSERT_NE(route, nullptr);
  EXPECT_TRUE(route->links[0].up());
  EXPECT_FALSE(route->links[1].up());
  Flow* const other = open_flow(elsewhere, 300, route);
  const std::size_t before = rails_[0]->sends.size();
  ASSERT_TRUE(send(*other));
  pass();
  EXPECT_EQ(rails_[0]->sends.size(), before + 1);
  EXPECT_EQ(elsewhere.failures, 0);
}

TEST_F(SharedRoute, T9ALostPeerIsToldToEveryFlowOfItsRouteOnceAndToNoOther) {
  open(1);
  Flow* const busy = open_flow(one_, 100);
  Flow* const idle = open_flow(two_, 200);
  Recorder elsewhere;
  Flow* const other = open_flow(elsewhere, 300, open_route(2));
  ASSERT_TRUE(send(*busy));
  engine_->begin_shut_out(*busy, "it did not answer");
  pass();
  engine_->begin_shut_out(*idle, "it did not answer, again");
  pass();
  EXPECT_EQ(one_.failures, 1);
  EXPECT_EQ(two_.failures, 1);
  EXPECT_EQ(elsewhere.failures, 0);
  EXPECT_EQ(busy->error.status(), Status::peer_lost);
  EXPECT_EQ(idle->error.status(), Status::peer_lost);
  EXPECT_NE(busy->error.text().find("1 operations were under way"), std::string::npos) << busy->error.text();
  EXPECT_NE(idle->error.text().find("0 operations were under way"), std::string::npos) << idle->error.text();
  // Whose doing it was, and who only shared the links.
  EXPECT_EQ(busy->error.text().find("another channel"), std::string::npos) << busy->error.text();
  EXPECT_NE(idle->error.text().find("another channel on the same links"), std::string::npos) << idle->error.text();
  EXPECT_TRUE(send(*other));
}

TEST_F(SharedRoute, T9WhatFailsOneFlowAloneIsNotToldToItsNeighbours) {
  open(1);
  Flow* const mine = open_flow(one_, 100);
  Flow* const neighbour = open_flow(two_, 200);
  ASSERT_TRUE(send(*neighbour));
  engine_->completions().fail(*mine, Error(Status::rail_failed, "its own"));
  engine_->completions().fail(*mine, Error(Status::rail_failed, "a second time"));
  pass();
  EXPECT_EQ(one_.failures, 1);
  EXPECT_EQ(two_.failures, 0);
  EXPECT_TRUE(send(*neighbour));
  EXPECT_EQ(rails_[0]->disconnects, 0U);
}

TEST_F(SharedRoute, T9EveryFlowOfADeadLinkAsksForItsOwnFence) {
  open(2);
  Flow* const first = open_flow(one_, 100);
  Flow* const second = open_flow(two_, 200);
  for (ScriptRail* rail : rails_) rail->complete_at_once = false;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(send(*first) && send(*second));
  pass();
  ASSERT_FALSE(rails_[0]->held.empty());
  rails_[0]->lose(0);
  for (int i = 0; i < 10; ++i) {
    clock_.time += 2'000'000;
    pass(1);
  }
  std::set<std::uint16_t> asked;
  for (const auto& sent : rails_[1]->sends) {
    if (sent.header().kind != wire::FrameKind::notice) continue;
    wire::RecordHeader record;
    std::memcpy(&record, sent.bytes.data() + wire::kRecordsAt, sizeof record);
    if (record.kind == wire::RecordKind::fence) asked.insert(sent.header().flow);
  }
  EXPECT_EQ(asked, (std::set<std::uint16_t>{first->remote_id, second->remote_id}));
  EXPECT_EQ(one_.failures + two_.failures, 0);
}

TEST_F(SharedRoute, T7ARailWithoutRoomIsBackPressureAndNothingElse) {
  Settings settings;
  settings.window = 16;
  settings.batch = 1;
  open(1, settings);
  Flow* const first = open_flow(one_, 100);
  Flow* const second = open_flow(two_, 200);
  rails_[0]->answer = fabric::Post::busy;
  int accepted = 0;
  while (accepted < 1'000'000 && send(*first)) ++accepted;
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 1'000'000) << "a flow that cannot send takes no more in the end";
  EXPECT_TRUE(send(*second)) << "one flow's queue is not the other's";
  rails_[0]->answer = fabric::Post::posted;
  pass(10);
  EXPECT_FALSE(rails_[0]->sends.empty());
  EXPECT_EQ(one_.failures + two_.failures, 0);
}

}  // namespace
}  // namespace railyard::transport
