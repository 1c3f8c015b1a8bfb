/// A peer whose threads get little of their processors answers unevenly: one link at once, another much later. No link
/// is blamed for that. What only a fault can bring about is believed as soon as ever.
#include <functional>

#include "failover_fixture.hpp"

namespace railyard::transport {
namespace {

class BusyPeerTest : public FailoverTest {
 protected:
  /// Their buffers are free again.
  static void let_sends_go(ScriptRail& rail) {
    for (const auto& sent : rail.sends) {
      const auto of_it = [&](const ScriptRail::Held& held) { return held.context == sent.context; };
      if (std::erase_if(rail.held, of_it) == 0) continue;
      rail.events.push_back({fabric::Event::Kind::sent, 0, 0, sent.context, 0});
    }
    rail.sends.clear();
  }
  /// The peer answers whatever comes over rail 1, and has not come to rail 0. Milliseconds until that costs a link.
  int until_lost(
      int most, const std::function<void()>& each = [] {}) {
    for (int i = 0; i < most; ++i) {
      if (engine_->statistics().links_lost != 0) return i;
      each();
      pass(1);
      answer_pings(1, 1);
      let_sends_go(*rails_[1]);
    }
    return engine_->statistics().links_lost != 0 ? most : -1;
  }
  /// Both links' rates are known from here on.
  void put_four_fast_chunks() {
    for (auto* rail : rails_) rail->complete_at_once = true;
    put_four_chunks();
    pass(1);
    rails_[1]->deliver(acknowledgement(4, 4 + kFirstGrant));
    pass(1);
    for (auto* rail : rails_) rail->complete_at_once = false;
  }
  void put_four_more() {
    std::uint64_t number = 0;
    const std::size_t before = rails_[0]->writes.size();
    ASSERT_TRUE(engine_->submissions().try_write(*flow_, bulk(4 * 32 * 1024), nullptr, number));
    ASSERT_GT(rails_[0]->writes.size(), before);
  }
};

TEST_F(BusyPeerTest, ALinkIsNotBlamedWhileThePeersMachineTakesWhatItBrings) {
  open(2);
  rails_[0]->delivery_answer = {1000, false};
  put_four_chunks();
  EXPECT_EQ(until_lost(400), -1) << "its kernel has it all: only the process has not looked";
  EXPECT_GE(engine_->statistics().links_suspected, 1U);
  EXPECT_NE(until_lost(400), -1) << "half of RAILYARD_PEER_TIMEOUT_MS is enough for anybody";
}

TEST_F(BusyPeerTest, ALinkThatIsTakenFromSlowlyIsNotBlamed) {
  open(2);
  rails_[0]->delivery_answer = {1000, true};
  put_four_chunks();
  EXPECT_EQ(until_lost(400, [&] { ++rails_[0]->delivery_answer->taken; }), -1);
}

TEST_F(BusyPeerTest, ALinkThatNothingIsTakenFromIsGivenUpAsSoonAsOneThatNobodyKnowsOf) {
  open(2);
  put_four_fast_chunks();
  put_four_more();
  const int unknown = until_lost(100);
  ASSERT_GT(unknown, 0);
  rails_.clear();
  open(2);
  put_four_fast_chunks();
  rails_[0]->delivery_answer = {1000, true};
  put_four_more();
  const int known = until_lost(100);
  EXPECT_GT(known, 0);
  EXPECT_LE(known, unknown);
}

/// A chunk takes longer than the least deadline here, and the peer's machine is seen to take all of it at once.
TEST_F(BusyPeerTest, AHealthyLinkThatIsVerySlowIsNotBlamed) {
  constexpr int kChunkMilliseconds = 26;
  open(2);
  rails_[0]->delivery_answer = {1000, true};
  put_four_chunks();
  int now = 0;
  EXPECT_EQ(until_lost(300,
                       [&] {
                         if (++now % kChunkMilliseconds == 0) rails_[0]->delivery_answer->taken += 32 * 1024;
                       }),
            -1);
  EXPECT_GE(engine_->statistics().links_suspected, 1U) << "it was late, though";
  EXPECT_NE(until_lost(300), -1) << "and nothing moves any more";
}

TEST_F(BusyPeerTest, ALinkThatStopsToBeTakenFromIsGivenUpLater) {
  open(2);
  rails_[0]->delivery_answer = {1000, false};
  put_four_chunks();
  ASSERT_EQ(until_lost(200), -1);
  rails_[0]->delivery_answer = {1000, true};
  EXPECT_NE(until_lost(200), -1);
}

/// What the peer's answers waited for may be this process: a few passes in a row, far apart in time, read little.
TEST_F(BusyPeerTest, OurOwnAbsenceAfterThePeersSecondAnswerCostsNoLink) {
  open(2);
  put_four_chunks();
  pass(12);
  const auto late = rails_[0]->notices(wire::RecordKind::ping);
  for (int round = 0; round < 2; ++round) {
    answer_pings(1, 1);
    rails_[1]->sends.clear();
    pass(1);
  }
  clock_.time += 200 * kMillisecond;
  engine_->progress();
  for (const auto& ping : late) rails_[1]->deliver(notice({wire::RecordKind::pong, 0, 0, ping.number, ping.word}));
  pass(2);
  EXPECT_EQ(engine_->statistics().links_lost, 0U);
}

TEST_F(BusyPeerTest, AnAnswerThatWaitsForAStoppedPeerCostsNoLink) {
  open(1);
  rails_[0]->deliver(frame(0, 1));
  pass(1);
  rails_[0]->answer = fabric::Post::busy;
  rails_[0]->delivery_answer = {1000, false};
  rails_[0]->deliver(notice({wire::RecordKind::ping, 0, 0, 1, 0}));
  pass(400);
  EXPECT_EQ(engine_->statistics().links_lost, 0U);
  pass(400);
  EXPECT_EQ(engine_->statistics().links_lost, 1U) << "half of RAILYARD_PEER_TIMEOUT_MS is enough for anybody";
}

TEST_F(BusyPeerTest, ChunksThatAnAnsweringPeerHasNotComeToCostNoLink) {
  open(2, {}, 3000);
  for (auto* rail : rails_) rail->delivery_answer = {1000, false};
  put_four_chunks();
  const auto answered = [&](int milliseconds) {
    for (int i = 0; i < milliseconds; ++i) {
      pass(1);
      answer_pings(0, 1);
      answer_pings(1, 1);
      for (auto* rail : rails_) rail->sends.clear();
    }
    return engine_->statistics().links_lost;
  };
  EXPECT_EQ(answered(1200), 0U) << "without that knowledge 500 would have done";
  EXPECT_GE(answered(1000), 1U);
}

/// The second answer says that everything has been read that had come before its question.
TEST_F(BusyPeerTest, ASecondPingIsAnsweredOnceEveryRailHasBeenReadEmpty) {
  Settings settings;
  settings.batch = 4;
  open(2, settings);
  const auto pongs = [&] { return rails_[1]->notices(wire::RecordKind::pong).size(); };
  const auto ping = [&](std::uint32_t round, bool thorough) {
    rails_[1]->deliver(notice(wire::Ping{round, {1, 1, 1}, true, thorough}.header()));
  };
  ping(1, false);
  engine_->progress();
  EXPECT_EQ(pongs(), 1U) << "a first one at once";
  for (std::uint32_t i = 0; i < 14; ++i) rails_[0]->deliver(frame(i, 1));
  ping(2, true);
  for (int passes = 0; passes < 3; ++passes) {
    engine_->progress();
    EXPECT_EQ(pongs(), 1U) << "rail 0 has more";
  }
  engine_->progress();
  engine_->progress();
  EXPECT_EQ(pongs(), 2U);
  EXPECT_EQ(signals_[0], 14U);
}

TEST_F(BusyPeerTest, ARailThatIsNeverEmptyDoesNotKeepAnAnswerForLong) {
  Settings settings;
  settings.batch = 1;
  open(2, settings);
  rails_[1]->deliver(notice(wire::Ping{1, {}, true, true}.header()));
  for (std::uint32_t i = 0; i < 50; ++i) {
    rails_[0]->deliver(frame(i, 1));
    engine_->progress();
  }
  EXPECT_EQ(rails_[1]->notices(wire::RecordKind::pong).size(), 1U);
}

}  // namespace
}  // namespace railyard::transport
