/// Promises 3, 4 and 8 at the engine's own level: what is sent when, and what is not.
#include "failover_fixture.hpp"

namespace railyard::transport {
namespace {

TEST_F(FailoverTest, NothingGoesOutAgainBeforeTheTargetHasShutTheLinkOut) {
  open(2);
  put_four_chunks();
  rails_[0]->lose(rails_[0]->writes[0].to.remote);
  pass(100);
  EXPECT_EQ(writes(), 4U) << "the old writes may still land";
  const auto asked = rails_[1]->notices(wire::RecordKind::fence);
  ASSERT_FALSE(asked.empty());
  const auto fence = wire::Fence::of(asked[0]);
  EXPECT_EQ(fence.epoch, 0U) << "the first epoch";
  EXPECT_EQ(fence.ends.link, 0U);
}

TEST_F(FailoverTest, OnlyWhatTheReportLacksGoesOutAgain) {
  open(2);
  put_four_chunks();
  const auto lost = rails_[0]->writes;
  rails_[0]->lose(lost[0].to.remote);
  pass(2);
  // Of the two, the second has arrived.
  fenced(0, 0, 0, std::uint64_t{1} << sequence(lost[1]), 1);
  ASSERT_EQ(rails_[1]->writes.size(), 3U);
  EXPECT_EQ(sequence(rails_[1]->writes[2]), sequence(lost[0]));
  EXPECT_EQ(rails_[1]->writes[2].from.address, lost[0].from.address);
  EXPECT_EQ(rails_[1]->writes[2].from.bytes, lost[0].from.bytes);
  const auto statistics = engine_->statistics();
  EXPECT_EQ(statistics.segments_replayed, 1U);
  EXPECT_EQ(statistics.links_lost, 1U);
  EXPECT_EQ(statistics.fences, 1U);
  // The trouble is the first rail's: the second one only carries what it lost.
  EXPECT_EQ(statistics.rails[0].segments_replayed, 1U);
  EXPECT_EQ(statistics.rails[0].links_lost, 1U);
  EXPECT_EQ(statistics.rails[1].segments_replayed + statistics.rails[1].links_lost, 0U);
  // A second copy of the answer changes nothing.
  fenced(0, 0, 0, 0, 1);
  EXPECT_EQ(writes(), 5U);
  rails_[1]->deliver(acknowledgement(4, 20));
  engine_->progress();
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
  EXPECT_FALSE(flow_->failed.load());
}

TEST_F(FailoverTest, AFrameMovesWithItsNumberAndBytes) {
  open(2);
  put_small();
  const std::size_t first = rails_[0]->sends.empty() ? 1 : 0;
  const std::size_t other = 1 - first;
  const auto sent = rails_[first]->sends.at(0);
  rails_[first]->lose(sent.remote);
  pass(2);
  fenced(static_cast<std::uint16_t>(first), 0, 0, 0, other);
  const auto& again = rails_[other]->sends.back();
  ASSERT_EQ(again.header().kind, wire::FrameKind::sequenced);
  EXPECT_EQ(again.header().sequence, sent.header().sequence);
  EXPECT_TRUE(std::equal(again.bytes.begin() + wire::kRecordsAt, again.bytes.end(),
                         sent.bytes.begin() + wire::kRecordsAt, sent.bytes.end()));
}

TEST_F(FailoverTest, AReadOfADeadLinkIsReadAgain) {
  open(2);
  Ticket ticket;
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, bulk(1000), Operation::Kind::read, ticket));
  const std::size_t first = rails_[0]->reads.empty() ? 1 : 0;
  const std::size_t other = 1 - first;
  rails_[first]->lose(rails_[first]->reads[0].from.remote);
  pass(2);
  EXPECT_TRUE(rails_[other]->reads.empty());
  fenced(static_cast<std::uint16_t>(first), 0, 0, 0, other);
  ASSERT_EQ(rails_[other]->reads.size(), 1U);
  rails_[other]->events.push_back({fabric::Event::Kind::read, 0, 1000, rails_[other]->reads[0].context, 0});
  engine_->progress();
  EXPECT_TRUE(engine_->completions().slot_done(ticket));
  EXPECT_EQ(engine_->completions().slot_status(ticket), Status::ok);
}

TEST_F(FailoverTest, AnErrorCompletionIsTheEndOfItsLink) {
  open(2);
  put_four_chunks();
  const auto failed = rails_[1]->writes[0];
  std::erase_if(rails_[1]->held, [&](const auto& held) { return held.context == failed.context; });
  rails_[1]->events.push_back({fabric::Event::Kind::failed, 0, 0, failed.context, 5});
  pass(2);
  EXPECT_EQ(rails_[1]->disconnects, 1U);
  EXPECT_FALSE(rails_[0]->notices(wire::RecordKind::fence).empty());
  fenced(1, 0, 0, 0, 0);
  EXPECT_EQ(rails_[0]->writes.size(), 4U) << "both of its chunks, the failed one and its neighbour";
}

TEST_F(FailoverTest, ASilentLinkIsGivenUpWhenAnotherAnswers) {
  open(2);
  put_four_chunks();
  pass(12);
  ASSERT_FALSE(rails_[0]->notices(wire::RecordKind::ping).empty());
  ASSERT_FALSE(rails_[1]->notices(wire::RecordKind::ping).empty());
  for (int i = 0; i < 12; ++i) {
    answer_pings(1, 1);
    rails_[1]->sends.clear();
    pass(1);
  }
  EXPECT_EQ(engine_->statistics().links_suspected, 1U);
  EXPECT_EQ(engine_->statistics().links_lost, 1U);
  // Of the two that are late the one with the oldest segment is suspected; the one that does not answer is lost.
  EXPECT_EQ(engine_->statistics().rails[1].links_suspected, 1U);
  EXPECT_EQ(engine_->statistics().rails[0].links_lost, 1U);
  EXPECT_EQ(engine_->statistics().rails[0].links_suspected + engine_->statistics().rails[1].links_lost, 0U);
  EXPECT_EQ(rails_[0]->disconnects, 1U);
  EXPECT_EQ(rails_[1]->disconnects, 0U);
  pass(25);
  EXPECT_FALSE(rails_[1]->notices(wire::RecordKind::fence).empty());
}

TEST_F(FailoverTest, ALinkThatAnswersIsNotGivenUp) {
  open(2);
  put_four_chunks();
  for (int i = 0; i < 100; ++i) {
    pass(1);
    answer_pings(0, 1);  // over the other link: the way back is not what was asked for
    answer_pings(1, 1);
    for (auto* rail : rails_) rail->sends.clear();
  }
  EXPECT_EQ(engine_->statistics().links_lost, 0U);
}

TEST_F(FailoverTest, WhereNobodyAnswersNoLinkIsBlamed) {
  open(2);
  put_four_chunks();
  pass(450);
  EXPECT_EQ(engine_->statistics().links_lost, 0U);
  EXPECT_FALSE(flow_->failed.load()) << "the peer may be computing";
  pass(100);
  EXPECT_EQ(engine_->statistics().links_lost, 2U) << "half of its time is over: every link is made anew";
  EXPECT_FALSE(flow_->failed.load());
  pass(600);
  EXPECT_TRUE(flow_->failed.load()) << "silent for longer than RAILYARD_PEER_TIMEOUT_MS";
  EXPECT_EQ(flow_->error.status(), Status::peer_lost);
  EXPECT_EQ(flow_->error.where().peer, 1);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
  EXPECT_EQ(engine_->statistics().peers_lost, 1U);
}

TEST_F(FailoverTest, OurOwnAbsenceIsNotThePeersSilence) {
  open(2);
  put_four_chunks();
  clock_.time += 100'000 * kMillisecond;  // nobody made progress for 100 s
  engine_->progress();
  pass(5);
  EXPECT_FALSE(flow_->failed.load());
}

/// The health clock stands still while nobody makes passes: its first step afterwards is no age of what is sent now.
TEST_F(FailoverTest, TheFirstMessageAfterAQuietTimeIsNotLate) {
  open(2);
  pass(5);
  clock_.time += 10'000 * kMillisecond;
  put_four_chunks();
  pass(1);
  EXPECT_EQ(engine_->statistics().links_suspected, 0U);
  for (const auto* rail : rails_) EXPECT_TRUE(rail->notices(wire::RecordKind::ping).empty()) << "asked after nothing";
  pass(30);
  EXPECT_NE(engine_->statistics().links_suspected, 0U) << "it is late by now";
}

TEST_F(FailoverTest, AnInterfaceThatGoesDownTakesItsLinksAtOnce) {
  open(2);
  put_four_chunks();
  rails_[0]->set_interface(false);
  pass(1);
  const auto asked = rails_[1]->notices(wire::RecordKind::fence);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(static_cast<LossCause>(asked[0].detail), LossCause::local_down);
  EXPECT_FALSE(engine_->statistics().rails[0].up);
  pass(1000);
  EXPECT_EQ(rails_[0]->connects.size(), 1U) << "no attempt while the interface is down";
}

TEST_F(FailoverTest, APeerWhoseInterfaceIsDownIsBelieved) {
  open(2);
  put_four_chunks();
  rails_[1]->deliver(notice({wire::RecordKind::fence, static_cast<std::uint8_t>(LossCause::local_down), 0, 0,
                             wire::LinkEnds{0, 0, 0}.pack()}));
  pass(1);
  EXPECT_EQ(rails_[0]->disconnects, 1U);
}

TEST_F(FailoverTest, AFenceIsAnsweredWhenTheRailHasDoneIt) {
  open(2);
  rails_[0]->fence_answer = false;
  chunk_lands(1, 0);
  rails_[1]->deliver(notice(wire::Fence{3, {0, 0, 0}}.header()));
  pass(3);
  ASSERT_FALSE(rails_[0]->fences.empty());
  EXPECT_EQ(rails_[0]->fences[0].epoch, 3U);
  EXPECT_EQ(rails_[0]->fences[0].id, RouteName::of_link(flow_->route->name.in, 0));
  EXPECT_TRUE(rails_[0]->notices(wire::RecordKind::fenced).empty());
  EXPECT_TRUE(rails_[1]->notices(wire::RecordKind::fenced).empty());
  chunk_lands(3, 0);  // what the rail still had in hand
  rails_[0]->fence_answer = true;
  pass(1);
  std::vector<std::byte> answer;
  for (const auto* rail : rails_) {
    for (const auto& sent : rail->sends) {
      wire::RecordHeader record;
      if (sent.header().kind != wire::FrameKind::notice) continue;
      std::memcpy(&record, sent.bytes.data() + wire::kRecordsAt, sizeof record);
      if (record.kind == wire::RecordKind::fenced) answer = sent.bytes;
    }
  }
  ASSERT_FALSE(answer.empty());
  wire::FencedBody body;
  std::uint64_t bits = 0;
  std::memcpy(&body, answer.data() + wire::kRecordsAt + sizeof(wire::RecordHeader), sizeof body);
  std::memcpy(&bits, answer.data() + wire::kRecordsAt + sizeof(wire::RecordHeader) + sizeof body, sizeof bits);
  EXPECT_EQ(body.next, 0U);
  EXPECT_EQ(bits, 0b1010U);
}

TEST_F(FailoverTest, ATimedFenceWaitsOutThePacketsLifetime) {
  open(2);
  rails_[0]->capabilities_.fencing = fabric::Fencing::timed;
  rails_[0]->capabilities_.packet_lifetime = 50 * kMillisecond;
  rails_[1]->deliver(notice(wire::Fence{0, {0, 0, 0}}.header()));
  const auto answers = [&] {
    return rails_[0]->notices(wire::RecordKind::fenced).size() + rails_[1]->notices(wire::RecordKind::fenced).size();
  };
  pass(48);
  EXPECT_EQ(answers(), 0U);
  pass(5);
  EXPECT_EQ(answers(), 1U);
}

TEST_F(FailoverTest, ALinkComesBackInANewEpochAfterThreeAnswers) {
  open(2);
  put_four_chunks();
  rails_[0]->lose(rails_[0]->writes[0].to.remote);
  pass(2);
  fenced(0, 0, 0, 0, 1);
  rails_[1]->deliver(acknowledgement(4, 20));
  // Something to do, so that the link is wanted.
  put_small();
  rails_[0]->sends.clear();
  for (int answers = 0; answers < 3; ++answers) {
    EXPECT_EQ(engine_->statistics().links_rejoined, 0U);
    for (int i = 0; i < 200 && rails_[0]->notices(wire::RecordKind::ping).empty(); ++i) pass(1);
    answer_pings(0, 1);
    rails_[0]->sends.clear();
  }
  pass(3);
  EXPECT_EQ(engine_->statistics().links_rejoined, 1U);
  ASSERT_EQ(rails_[0]->connects.size(), 2U);
  EXPECT_EQ(rails_[0]->connects[0].id, rails_[0]->connects[1].id);
  EXPECT_EQ(rails_[0]->connects[1].epoch, rails_[0]->connects[0].epoch + 1);
}

TEST_F(FailoverTest, ASlowLinkComesBackToo) {
  open(2);
  put_small();
  rails_[0]->lose(0);
  pass(105);
  // Each answer comes a deadline and more after its question, when the next one has been asked already.
  std::vector<std::vector<wire::RecordHeader>> asked;
  for (int i = 0; i < 10 && engine_->statistics().links_rejoined == 0; ++i) {
    pass(25);
    asked.push_back(rails_[0]->notices(wire::RecordKind::ping));
    rails_[0]->sends.clear();
    answer_pings(1, 1);
    rails_[1]->sends.clear();
    if (asked.size() < 2) continue;
    for (const auto& ping : asked[asked.size() - 2]) {
      rails_[1]->deliver(notice({wire::RecordKind::pong, 0, 0, ping.number, ping.word}));
    }
  }
  EXPECT_EQ(engine_->statistics().links_rejoined, 1U);
}

TEST_F(FailoverTest, ALinkThatCannotCarryAnAnswerIsMadeAnew) {
  open(1);
  rails_[0]->deliver(frame(0, 1));
  pass(1);
  rails_[0]->answer = fabric::Post::busy;  // its queue is full of what will never complete
  for (int i = 0; i < 300; ++i) {
    rails_[0]->deliver(notice({wire::RecordKind::ping, 0, 0, static_cast<std::uint32_t>(i + 1), 0}));
    pass(1);
  }
  EXPECT_GE(rails_[0]->connects.size(), 2U);
}

TEST_F(FailoverTest, EveryFurtherLossDoublesTheWait) {
  open(2);
  std::vector<int> waits;
  const auto pass_answering = [&] {
    pass(1);
    for (const std::size_t rail : {0U, 1U}) {
      answer_pings(rail, 1);
      rails_[rail]->sends.clear();
    }
  };
  for (int epoch = 0; epoch < 4; ++epoch) {
    put_small();  // keeps the flow awake
    rails_[0]->lose(static_cast<fabric::RemoteId>(epoch));
    const std::size_t before = rails_[0]->connects.size();
    int waited = 0;
    for (; rails_[0]->connects.size() == before && waited < 5000; ++waited) pass_answering();
    waits.push_back(waited);
    const auto rejoined = engine_->statistics().links_rejoined;
    for (int i = 0; i < 100 && engine_->statistics().links_rejoined == rejoined; ++i) pass_answering();
    ASSERT_GT(engine_->statistics().links_rejoined, rejoined);
  }
  for (std::size_t i = 1; i < waits.size(); ++i) EXPECT_GE(waits[i], 2 * waits[i - 1] - 5);
}

TEST_F(FailoverTest, APeerWhoseMachineSaysNobodyIsThereIsLost) {
  open(2);
  const std::uint64_t number = put_small();
  for (fabric::RemoteId epoch = 0; epoch < 2 && !flow_->failed.load(); ++epoch) {
    for (auto* rail : rails_) rail->lose(epoch, epoch > 0);
    pass(150);
  }
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_EQ(flow_->error.status(), Status::peer_lost);
  EXPECT_NE(flow_->error.message().find("rank 1"), std::string::npos);
  EXPECT_LT(flow_->completed.load(), number);
  EXPECT_EQ(engine_->losses().last(), 1);
}

TEST_F(FailoverTest, GossipIsLookedIntoNotBelieved) {
  open(2);
  rails_[0]->deliver(notice(wire::Lost{1}.header()));  // the peer itself says that it is lost
  pass(2);
  EXPECT_FALSE(flow_->failed.load());
  EXPECT_FALSE(rails_[0]->notices(wire::RecordKind::ping).empty());
  answer_pings(0, 0);
  answer_pings(1, 0);
  pass(1100);
  EXPECT_FALSE(flow_->failed.load()) << "it has answered";
  rails_[0]->deliver(notice(wire::Lost{99}.header()));
  pass(1);
  EXPECT_EQ(engine_->statistics().dropped_malformed, 1U);
}

TEST_F(FailoverTest, OneRefusedLinkIsNotTheEndOfAPeer) {
  open(2);
  put_small();
  rails_[0]->lose(0, true);
  pass(300);
  EXPECT_FALSE(flow_->failed.load());
}

TEST_F(FailoverTest, APeerThatSaysGoodbyeIsNotLost) {
  open(2);
  rails_[0]->deliver(notice(wire::Leave{}.header()));
  pass(1);
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_FALSE(flow_->lost_operations.load());
  EXPECT_EQ(engine_->losses().last(), -1);
  EXPECT_EQ(engine_->statistics().peers_lost, 0U);
}

TEST_F(FailoverTest, TwoSidesWithoutALinkMeetAtOnce) {
  open(1);
  put_small();
  rails_[0]->lose(0);
  pass(2);
  ASSERT_EQ(rails_[0]->connects.size(), 2U) << "with nothing left the next attempt does not wait";
  rails_[0]->lose(1);
  pass(2);
  ASSERT_EQ(rails_[0]->connects.size(), 2U) << "the one after that does";
  // The peer's ping shows that the path is there, and is answered over a link that waits for answers itself.
  rails_[0]->sends.clear();
  rails_[0]->deliver(notice(wire::Ping{9, {0, 0, 0}}.header()));
  pass(3);
  EXPECT_EQ(rails_[0]->connects.size(), 3U);
  const auto pongs = rails_[0]->notices(wire::RecordKind::pong);
  ASSERT_EQ(pongs.size(), 1U);
  EXPECT_EQ(wire::Pong::of(pongs[0]).round, 9U);
}

TEST_F(FailoverTest, AFirstConnectionThatNeverComesAboutIsTriedAgain) {
  open(2);
  rails_[0]->answer = fabric::Post::busy;
  std::uint64_t number = 0;
  ASSERT_TRUE(engine_->submissions().try_write(*flow_, bulk(4 * 32 * 1024), nullptr, number));
  for (int i = 0; i < 700; ++i) {
    pass(1);
    answer_pings(1, 1);
    rails_[1]->sends.clear();
  }
  EXPECT_GE(rails_[0]->connects.size(), 2U);
}

TEST_F(FailoverTest, AnInterfaceThatIsUpAgainIsNotReportedAsDown) {
  open(2);
  put_four_chunks();
  rails_[1]->answer = fabric::Post::busy;  // the request cannot leave yet
  rails_[0]->set_interface(false);
  pass(2);
  rails_[0]->set_interface(true);
  pass(2);
  rails_[1]->answer = fabric::Post::posted;
  pass(2);
  const auto asked = rails_[1]->notices(wire::RecordKind::fence);
  ASSERT_FALSE(asked.empty());
  EXPECT_NE(static_cast<LossCause>(asked[0].detail), LossCause::local_down);
}

TEST_F(FailoverTest, AnAnswerTakesAnotherLinkWhereTheBestIsFull) {
  open(2);
  rails_[flow_->first_link]->answer = fabric::Post::busy;
  const std::size_t other = 1 - flow_->first_link;
  rails_[other]->deliver(notice(wire::Fence{0, {0, 0, 0}}.header()));
  pass(1);
  EXPECT_EQ(rails_[other]->notices(wire::RecordKind::fenced).size(), 1U);
}

TEST_F(FailoverTest, AnswersButNoDeliveriesEndALink) {
  open(2);
  put_four_chunks();
  for (int i = 0; i < 800 && engine_->statistics().links_lost == 0; ++i) {
    pass(1);
    answer_pings(0, 1);
    answer_pings(1, 1);
    for (auto* rail : rails_) rail->sends.clear();
  }
  EXPECT_GE(engine_->statistics().links_lost, 1U);
}

TEST_F(FailoverTest, NoticesThatMakeNoSenseAreDroppedAndCounted) {
  open(2);
  const auto nowhere = wire::LinkEnds{99, 99, 99}.pack();
  rails_[0]->deliver(notice({wire::RecordKind::pong, 0, 0, 1, nowhere}));
  rails_[0]->deliver(notice({wire::RecordKind::pong, 0, 0, 77, 0}));
  rails_[0]->deliver(notice({wire::RecordKind::fence, 0, 0, 0, nowhere}));
  rails_[0]->deliver(notice({wire::RecordKind::fenced, 0, 0, 0, nowhere}));
  const wire::FencedBody liar{0, 1000};
  rails_[0]->deliver(notice({wire::RecordKind::fenced, 0, 0, 0, 0}, std::as_bytes(std::span(&liar, 1))));
  rails_[0]->deliver(notice({wire::RecordKind::put, 0, 0, 0, 0}));
  pass(1);
  EXPECT_EQ(engine_->statistics().dropped_malformed, 6U);
}

TEST_F(FailoverTest, AcknowledgementsDoNotAllVanishInOneLink) {
  open(2);
  for (std::uint32_t i = 0; i < 400; ++i) {
    rails_[i % 2]->deliver(frame(i, 1));
    pass(1);
    if (i % 2 == 1) {
      // Rail 1 delivers what it is given, rail 0 swallows it.
      for (const auto& held : rails_[1]->held) {
        rails_[1]->events.push_back({fabric::Event::Kind::sent, 0, 0, held.context, 0});
      }
      rails_[1]->held.clear();
    }
  }
  std::uint32_t told = 0;
  for (const auto& sent : rails_[1]->sends) told = std::max(told, sent.header().acknowledged);
  EXPECT_GT(told, 390U);
}

}  // namespace
}  // namespace railyard::transport
