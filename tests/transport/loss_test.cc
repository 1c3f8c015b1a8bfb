/// Who is lost, who is only stalled, who has left; and that a peer is shut out before anybody is told.
#include "failover_fixture.hpp"

namespace railyard::transport {
namespace {

class LossTest : public FailoverTest {
 protected:
  void kill_peer() {
    for (fabric::RemoteId epoch = 0; epoch < 2; ++epoch) {
      for (auto* rail : rails_) rail->lose(epoch, true);
      pass(150);
    }
  }
  /// The fences for good that a rail was asked for.
  static std::size_t shut_out(const ScriptRail& rail) {
    return static_cast<std::size_t>(
        std::ranges::count_if(rail.fences, [](const auto& tag) { return tag.epoch == UINT32_MAX; }));
  }
};

TEST_F(LossTest, ALostPeerIsToldOnlyWhenNothingOfItsCanLandAnyMore) {
  open(2);
  put_small();
  rails_[1]->fence_answer = false;  // something of the peer's is still in the rail's hands
  kill_peer();
  EXPECT_FALSE(flow_->failed.load()) << "whoever is told may use the memory for something else";
  EXPECT_EQ(engine_->statistics().peers_lost, 0U);
  ASSERT_GE(shut_out(*rails_[0]), 1U);
  ASSERT_GE(shut_out(*rails_[1]), 1U);
  EXPECT_EQ(rails_[0]->fences[0].id, RouteName::of_link(flow_->route->name.in, 0));
  EXPECT_EQ(rails_[1]->fences[0].id, RouteName::of_link(flow_->route->name.in, 1));
  rails_[1]->fence_answer = true;
  pass(1);
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_EQ(flow_->error.status(), Status::peer_lost);
  EXPECT_EQ(engine_->statistics().peers_lost, 1U);
}

TEST_F(LossTest, ARailThatKeepsWhatItWasGivenIsStoppedBeforeALossIsTold) {
  open(2);
  for (auto* rail : rails_) rail->complete_at_once = false;
  put_four_chunks();
  rails_[1]->keeps_contexts = true;
  kill_peer();
  EXPECT_FALSE(flow_->failed.load()) << "a rail may still read the memory of its operations";
  EXPECT_EQ(rails_[1]->stops, 0);
  pass(static_cast<int>(kMostReturn / kMillisecond) + 100);
  EXPECT_EQ(rails_[1]->stops, 1);
  EXPECT_EQ(rails_[0]->stops, 0);
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_EQ(flow_->posted, 0U);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(LossTest, ATimedFenceIsWaitedOutBeforeALossIsTold) {
  open(2);
  rails_[0]->capabilities_.fencing = fabric::Fencing::timed;
  rails_[0]->capabilities_.packet_lifetime = 500 * kMillisecond;
  put_small();
  kill_peer();
  EXPECT_FALSE(flow_->failed.load());
  pass(600);
  EXPECT_TRUE(flow_->failed.load());
}

TEST_F(LossTest, ShuttingOutReturnsAtOnceAndEndsWithThePassesThatFollow) {
  open(2);
  put_four_chunks();
  rails_[0]->fence_answer = false;
  const std::size_t polls = rails_[0]->polls;
  engine_->begin_shut_out(*flow_, "a test gives it up");
  EXPECT_EQ(rails_[0]->polls, polls);
  EXPECT_FALSE(flow_->failed.load());
  pass(10);
  EXPECT_FALSE(flow_->failed.load());
  rails_[0]->fence_answer = true;
  pass(2);
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_EQ(flow_->posted, 0U) << "the rails have given back what they held";
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(LossTest, APeerThatRefusesEveryLinkAgainAndAgainHasGivenUsUp) {
  open(2);
  put_small();
  for (auto* rail : rails_) rail->lose(0);
  for (fabric::RemoteId epoch = 1; epoch < 6 && !flow_->failed.load(); ++epoch) {
    for (int i = 0; i < 300 && rails_[0]->connects.size() <= epoch; ++i) pass(1);
    for (int i = 0; i < 300 && rails_[1]->connects.size() <= epoch; ++i) pass(1);
    for (auto* rail : rails_) rail->lose(epoch, false, true);
    pass(1);
    EXPECT_EQ(flow_->failed.load(), epoch >= 3) << "one refusal may have crossed a fence";
  }
  EXPECT_EQ(flow_->error.status(), Status::peer_lost);
}

TEST_F(LossTest, ARefusalBySomebodyWhoMayNotBeThePeersMachineProvesNothing) {
  open(1);
  put_small();
  for (int i = 0; i < 500; ++i) {
    const auto newest = static_cast<fabric::RemoteId>(rails_[0]->connects.size() - 1);
    rails_[0]->lose_unverified(newest);
    pass(1);
    ASSERT_FALSE(flow_->failed.load()) << "after " << newest + 1 << " refusals";
  }
  EXPECT_GT(rails_[0]->connects.size(), 3U);
  pass(900);
  ASSERT_TRUE(flow_->failed.load()) << "its time is over: it cannot be reached";
  EXPECT_EQ(flow_->error.message().find("its process is gone"), std::string::npos) << flow_->error.message();
}

TEST_F(LossTest, AWayThatLeadsNowhereDoesNotKeepADeadPeerAlive) {
  open(2);
  put_small();
  rails_[1]->lose_unverified(0);
  rails_[0]->lose(0, true);
  pass(5);
  EXPECT_TRUE(flow_->failed.load()) << flow_->error.message();
}

TEST_F(LossTest, ASilentPeerWhoseProcessLivesIsStalledNotLost) {
  open(2);
  put_four_chunks();
  rails_[1]->liveness_answer = fabric::Liveness::alive;
  pass(10'000);
  EXPECT_FALSE(flow_->failed.load());
  EXPECT_EQ(engine_->statistics().peers_lost, 0U);
  EXPECT_EQ(engine_->statistics().links_lost, 0U) << "nothing is torn down and made anew";
  EXPECT_EQ(engine_->statistics().peers_stalled, 1U) << "told once for each stall";
  // It goes on.
  rails_[0]->deliver(acknowledgement(4, 20));
  pass(2);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
  EXPECT_FALSE(flow_->failed.load());
}

TEST_F(LossTest, APeersTimeBeginsWhenItOwesSomething) {
  open(1);
  // A fence whose confirmation finds no link keeps the route watched, and no new link comes about.
  rails_[0]->fence_answer = false;
  rails_[0]->deliver(notice(wire::Fence{0, {0, 0, 0}}.header()));
  pass(1);
  rails_[0]->lose(0);
  rails_[0]->answer = fabric::Post::busy;
  pass(1);
  rails_[0]->fence_answer = true;
  pass(3000);
  ASSERT_FALSE(flow_->failed.load());
  put_small();
  pass(500);
  EXPECT_FALSE(flow_->failed.load());
  pass(700);
  EXPECT_TRUE(flow_->failed.load());
}

TEST_F(LossTest, APeerIsAskedAfterWhileThereIsALinkHoweverShort) {
  open(1);
  put_small();
  rails_[0]->liveness_answer = fabric::Liveness::alive;
  rails_[0]->answer = fabric::Post::busy;  // no new link stands, and each is given up at once
  for (int i = 0; i < 3000; ++i) {
    rails_[0]->lose(static_cast<fabric::RemoteId>(rails_[0]->connects.size() - 1));
    pass(1);
  }
  EXPECT_GT(rails_[0]->connects.size(), 3U);
  EXPECT_FALSE(flow_->failed.load()) << "its process lives";
}

TEST_F(LossTest, APeerThatNobodyCouldAskIsNotCalledSilent) {
  open(2);
  put_four_chunks();
  // The links are full of what never completes: not one question leaves.
  for (auto* rail : rails_) {
    rail->liveness_answer = fabric::Liveness::alive;
    rail->answer = fabric::Post::busy;
  }
  pass(800);
  EXPECT_FALSE(flow_->failed.load());
  EXPECT_EQ(engine_->statistics().links_lost, 2U) << "only links made anew could ask";
  for (auto* rail : rails_) {
    rail->answer = fabric::Post::posted;
    EXPECT_GE(rail->connects.size(), 2U);
  }
  pass(10);
  EXPECT_FALSE(rails_[0]->notices(wire::RecordKind::ping).empty());
}

TEST_F(LossTest, AStalledPeerThatBecomesUnreachableIsLost) {
  open(2);
  put_four_chunks();
  rails_[1]->liveness_answer = fabric::Liveness::alive;
  pass(3000);
  ASSERT_FALSE(flow_->failed.load());
  rails_[1]->liveness_answer = fabric::Liveness::unknown;
  pass(900);
  EXPECT_FALSE(flow_->failed.load());
  pass(300);
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_EQ(engine_->statistics().peers_lost, 1U);
}

TEST_F(LossTest, APeerThatLivesAndTakesNewLinksWithoutAWordHasEndedTheRoute) {
  open(2);
  put_four_chunks();
  rails_[1]->liveness_answer = fabric::Liveness::alive;
  for (auto* rail : rails_) rail->lose(0);
  // New links stand, since its rail takes them, and nobody answers on them.
  pass(900);
  EXPECT_FALSE(flow_->failed.load()) << "it may only be slow";
  pass(3000);
  ASSERT_TRUE(flow_->failed.load()) << "its goodbye was lost: nothing else would ever tell";
  EXPECT_EQ(flow_->error.status(), Status::peer_lost);
}

TEST_F(LossTest, AskingAgainAfterASilentPeerDoesNotGiveItMoreTime) {
  open(2);
  for (int i = 0; i < 15 && !flow_->failed.load(); ++i) {
    engine_->check_on(1);  // as whoever waits for it does now and then
    pass(100);
  }
  EXPECT_TRUE(flow_->failed.load());
}

TEST_F(LossTest, APeerWhoseProcessIsGoneIsNotWaitedFor) {
  open(2);
  put_four_chunks();
  rails_[0]->liveness_answer = fabric::Liveness::gone;
  pass(200);
  EXPECT_TRUE(flow_->failed.load()) << "long before RAILYARD_PEER_TIMEOUT_MS";
}

TEST_F(LossTest, ALinkThatThePeersThreadHasNotReadYetIsNotBlamed) {
  open(2);
  put_four_chunks();
  pass(12);
  const auto late = rails_[0]->notices(wire::RecordKind::ping);
  ASSERT_FALSE(late.empty());
  // The peer's thread has answered what rail 1 brought, and was stopped before it came to rail 0.
  answer_pings(1, 1);
  rails_[1]->sends.clear();
  pass(15);
  EXPECT_EQ(engine_->statistics().links_lost, 0U);
  // It goes on: with the next answer over rail 1 comes the one for rail 0.
  answer_pings(1, 1);
  for (const auto& ping : late) rails_[1]->deliver(notice({wire::RecordKind::pong, 0, 0, ping.number, ping.word}));
  pass(15);
  EXPECT_EQ(engine_->statistics().links_lost, 0U);
}

TEST_F(LossTest, ASuspectedLinkGetsNothingNewWhileAnotherIsTrusted) {
  open(2);
  put_four_chunks();
  pass(12);
  ASSERT_EQ(engine_->statistics().links_suspected, 1U);
  const std::size_t suspect = flow_->route->links[0].suspect() ? 0 : 1;
  const std::size_t before = rails_[suspect]->writes.size();
  std::uint64_t number = 0;
  std::vector<std::byte> large(16U << 20U);
  Bulk work = bulk(8);
  work.local = large.data();
  work.bytes = large.size();
  ASSERT_TRUE(engine_->submissions().try_write(*flow_, work, nullptr, number));
  pass(2);
  EXPECT_EQ(rails_[suspect]->writes.size(), before) << "rather wait for the other than for a fence";
  EXPECT_GT(rails_[1 - suspect]->writes.size(), 2U);
}

TEST_F(LossTest, AGoodbyeThatOvertakesTheLastFrameIsHeardWhenThatHasCome) {
  open(2);
  rails_[0]->deliver(notice(wire::Leave{}.header(), {}, 1));
  pass(1);
  EXPECT_FALSE(flow_->failed.load()) << "segment 0 is still on its way";
  rails_[1]->deliver(frame(0, 5));
  pass(2);
  EXPECT_EQ(signals_[0], 5U);
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_EQ(engine_->statistics().peers_lost, 0U);
  EXPECT_EQ(engine_->losses().last(), -1);
  std::size_t answers = 0;
  for (const auto* rail : rails_) answers += rail->notices(wire::RecordKind::leave).size();
  EXPECT_EQ(answers, 1U) << "the peer waits until it was heard";
}

TEST_F(LossTest, WhoeverSaidGoodbyeAndIsGoneIsNotLost) {
  open(2);
  rails_[0]->deliver(notice(wire::Leave{}.header(), {}, 1));
  pass(1);
  kill_peer();
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_NE(flow_->error.message().find("closed its world"), std::string::npos) << flow_->error.message();
  EXPECT_EQ(engine_->statistics().peers_lost, 0U);
}

TEST_F(LossTest, AFirstConnectionIsNotGivenUpBeforeThePeerIsReady) {
  EngineTest::open(2);
  for (auto* rail : rails_) rail->answer = fabric::Post::busy;
  std::uint64_t number = 0;
  ASSERT_TRUE(engine_->submissions().try_write(*flow_, bulk(4 * 32 * 1024), nullptr, number));
  pass(2000);
  EXPECT_EQ(engine_->statistics().links_lost, 0U) << "its machine keeps the connections for it";
}

}  // namespace
}  // namespace railyard::transport
