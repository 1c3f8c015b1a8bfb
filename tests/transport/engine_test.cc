#include "transport/engine.hpp"

#include "engine_fixture.hpp"

namespace railyard::transport {
namespace {

TEST_F(EngineTest, ASignalWaitsForEveryEarlierChunk) {
  open(2);
  rails_[1]->deliver(frame(2, 5));
  engine_->progress();
  EXPECT_EQ(signals_[0], 0U) << "two chunks are still missing";
  chunk_lands(1, 1);
  engine_->progress();
  EXPECT_EQ(signals_[0], 0U) << "one chunk is still missing";
  chunk_lands(0, 0);
  engine_->progress();
  EXPECT_EQ(signals_[0], 5U);
  EXPECT_EQ(engine_->statistics().held_out_of_order, 1U);
}

TEST_F(EngineTest, AFrameThatComesTwiceIsAppliedOnce) {
  open(2);
  rails_[0]->deliver(frame(0, 1));
  rails_[1]->deliver(frame(0, 1));
  rails_[0]->deliver(frame(1, 1));
  engine_->progress();
  engine_->progress();
  rails_[1]->deliver(frame(1, 1));
  engine_->progress();
  EXPECT_EQ(signals_[0], 2U);
  EXPECT_EQ(engine_->statistics().dropped_stale, 2U);
}

/// All 64 bits of the session count: whoever knows the flow's number has still to guess them.
TEST_F(EngineTest, AFrameOfAnotherSessionIsDropped) {
  open(1);
  for (unsigned bit = 0; bit < 64; ++bit) {
    std::vector<std::byte> bytes = frame(0, 1);
    wire::FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    header.session ^= std::uint64_t{1} << bit;
    std::memcpy(bytes.data(), &header, sizeof header);
    rails_[0]->deliver(std::move(bytes));
    engine_->progress();
    EXPECT_EQ(engine_->statistics().dropped_stale, bit + 1);
  }
  EXPECT_EQ(signals_[0], 0U);
  rails_[0]->deliver(frame(0, 1));
  engine_->progress();
  EXPECT_EQ(signals_[0], 1U);
}

TEST_F(EngineTest, AHandlerSendsNothing) {
  open(1);
  for (std::uint32_t i = 0; i < 8; ++i) rails_[0]->deliver(frame(i, 1));
  const std::size_t sent = rails_[0]->sends.size();
  engine_->progress();
  EXPECT_EQ(rails_[0]->sends.size(), sent) << "while messages arrive, acknowledgements wait for company";
  EXPECT_EQ(rails_[0]->polls, 1U) << "no recursion into progress";
  engine_->progress();
  ASSERT_EQ(rails_[0]->sends.size(), sent + 1) << "an idle pass sends one for all";
  EXPECT_EQ(rails_[0]->sends.back().header().kind, wire::FrameKind::acknowledge);
  EXPECT_EQ(rails_[0]->sends.back().header().acknowledged, 8U);
}

TEST_F(EngineTest, AcknowledgementsRideOnFrames) {
  open(1);
  rails_[0]->deliver(frame(0, 1));
  engine_->progress();
  put_small();
  ASSERT_EQ(rails_[0]->sends.size(), 1U);
  EXPECT_EQ(rails_[0]->sends[0].header().kind, wire::FrameKind::sequenced);
  EXPECT_EQ(rails_[0]->sends[0].header().acknowledged, 1U);
  engine_->progress();
  engine_->progress();
  EXPECT_EQ(rails_[0]->sends.size(), 1U) << "nothing left to acknowledge";
}

TEST_F(EngineTest, NothingIsCompleteBeforeItsAcknowledgement) {
  open(1);
  const std::uint64_t number = put_small();
  engine_->progress();  // the rail is done with it
  EXPECT_LT(flow_->completed.load(), number);
  EXPECT_EQ(engine_->completions().outstanding(), 1U);
  rails_[0]->deliver(acknowledgement(1, 100));
  engine_->progress();
  EXPECT_EQ(flow_->completed.load(), number);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(EngineTest, NoMoreIsSentThanWasGranted) {
  Settings settings;
  settings.inline_bytes = 4000;
  open(1, settings);
  static std::array<std::byte, 3500> big{};
  const PutRecord put{7, 0, big};
  std::uint64_t number = 0;
  for (std::uint32_t i = 0; i < kFirstGrant + 10; ++i) {
    EXPECT_TRUE(engine_->submissions().try_records(*flow_, &put, nullptr, number));
    engine_->progress();
  }
  EXPECT_EQ(rails_[0]->sends.size(), kFirstGrant);
  rails_[0]->deliver(acknowledgement(kFirstGrant, kFirstGrant + 3));
  engine_->progress();
  engine_->progress();
  EXPECT_EQ(rails_[0]->sends.size(), kFirstGrant + 3);
}

TEST_F(EngineTest, SmallPutsShareAFrameWhenTheRailIsBusy) {
  open(1);
  rails_[0]->complete_at_once = false;
  for (int i = 0; i < 100; ++i) put_small();
  EXPECT_LT(rails_[0]->sends.size(), 10U);
  EXPECT_GT(rails_[0]->sends.size(), 1U);
}

TEST_F(EngineTest, BusyIsBackPressureNotAnError) {
  open(1);
  rails_[0]->answer = fabric::Post::busy;
  const std::uint64_t number = put_small();
  for (int i = 0; i < 5; ++i) engine_->progress();
  EXPECT_FALSE(flow_->failed.load());
  rails_[0]->answer = fabric::Post::posted;
  engine_->progress();
  EXPECT_EQ(rails_[0]->sends.size(), 1U);
  rails_[0]->deliver(acknowledgement(1, 100));
  engine_->progress();
  EXPECT_EQ(flow_->completed.load(), number);
}

TEST_F(EngineTest, ALargePutIsCutOverAllRails) {
  open(4);
  for (auto* rail : rails_) rail->complete_at_once = false;
  std::uint64_t number = 0;
  ASSERT_TRUE(engine_->submissions().try_write(*flow_, bulk(1 << 20), nullptr, number));
  engine_->progress();
  std::size_t bytes = 0;
  std::vector<bool> seen(1 << 20);
  for (auto* rail : rails_) {
    EXPECT_FALSE(rail->writes.empty());
    for (const auto& write : rail->writes) {
      EXPECT_TRUE(write.options.with_immediate);
      bytes += write.from.bytes;
    }
  }
  EXPECT_EQ(bytes, 4U * 4U * 32U * 1024U) << "each rail holds its first window, no more";
}

TEST_F(EngineTest, LoneSmallChunksKeepToOneRail) {
  open(4);
  for (std::uint32_t i = 0; i < 8; ++i) {
    std::uint64_t number = 0;
    ASSERT_TRUE(engine_->submissions().try_write(*flow_, bulk(20'000), nullptr, number));
    engine_->progress();  // delivered before the next one
    rails_[0]->deliver(acknowledgement(i + 1, i + 17));
    engine_->progress();
  }
  for (std::size_t i = 0; i < rails_.size(); ++i) EXPECT_EQ(rails_[i]->writes.size(), i == flow_->first_link ? 8U : 0U);
}

TEST_F(EngineTest, AFenceHoldsDirectWritesUntilWhatCameBeforeIsThere) {
  open(1);
  put_small();
  flow_->sender.request_fence();
  std::uint64_t number = 0;
  ASSERT_TRUE(engine_->submissions().try_write(*flow_, bulk(100'000), nullptr, number));
  engine_->progress();
  EXPECT_TRUE(rails_[0]->writes.empty());
  rails_[0]->deliver(acknowledgement(1, 100));
  engine_->progress();
  EXPECT_EQ(rails_[0]->writes.size(), 1U);
}

TEST_F(EngineTest, AFenceHoldsASignalUntilRelaxedWritesAreDelivered) {
  open(1);
  rails_[0]->complete_at_once = false;
  Ticket ticket;
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, bulk(5000), Operation::Kind::relaxed_write, ticket));
  ASSERT_EQ(rails_[0]->writes.size(), 1U);
  EXPECT_FALSE(rails_[0]->writes[0].options.with_immediate);
  EXPECT_TRUE(rails_[0]->writes[0].options.delivery_complete);
  flow_->sender.request_fence();
  put_small();
  engine_->progress();
  EXPECT_TRUE(rails_[0]->sends.empty());
  rails_[0]->events.push_back({fabric::Event::Kind::written, 0, 5000, rails_[0]->writes[0].context, 0});
  engine_->progress();
  EXPECT_EQ(rails_[0]->sends.size(), 1U);
  EXPECT_TRUE(engine_->completions().slot_done(ticket));
}

TEST_F(EngineTest, WithoutFailoverAnErrorCompletionFailsTheFlowOnceAndNamesIt) {
  Settings settings;
  settings.failover = "off";
  open(1, settings);
  rails_[0]->complete_at_once = false;
  const std::uint64_t number = put_small();
  rails_[0]->events.push_back({fabric::Event::Kind::failed, 0, 0, rails_[0]->sends[0].context, 5});
  engine_->progress();
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_LT(flow_->completed.load(), number);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
  EXPECT_EQ(flow_->error.where().peer, 1);
  EXPECT_NE(flow_->error.text().find("scripted error 5"), std::string::npos);
}

TEST_F(EngineTest, AFrameWhosePostFailsItsFlowIsNotKept) {
  Settings settings;
  settings.failover = "off";
  open(1, settings);
  rails_[0]->answer = fabric::Post::failed;
  put_small();
  EXPECT_FALSE(flow_->failed.load());  // a failed post is acted on when the turns of a pass are over
  engine_->progress();
  EXPECT_TRUE(flow_->failed.load());
  EXPECT_FALSE(flow_->sender.has_queued());
  EXPECT_EQ(flow_->sender.frames, 0U);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(EngineTest, AFrameWhoseLinkIsBusyLeavesWithTheNextPass) {
  open(1);
  rails_[0]->answer = fabric::Post::busy;
  put_small();
  EXPECT_TRUE(flow_->sender.has_queued());
  rails_[0]->answer = fabric::Post::posted;
  engine_->progress();
  EXPECT_FALSE(flow_->sender.has_queued());
  EXPECT_EQ(rails_[0]->sends.size(), 1U);
}

TEST_F(EngineTest, AFailedFlowAnswersForReadsInFlight) {
  Settings settings;
  settings.failover = "off";
  open(2, settings);
  for (auto* rail : rails_) rail->complete_at_once = false;
  Ticket ticket;
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, bulk(200'000), Operation::Kind::read, ticket));
  std::vector<ScriptRail::Read> reads = rails_[0]->reads;
  ASSERT_GE(reads.size(), 2U);
  rails_[0]->events.push_back({fabric::Event::Kind::failed, 0, 0, reads[0].context, 5});
  engine_->progress();
  EXPECT_TRUE(engine_->completions().slot_done(ticket));
  EXPECT_NE(engine_->completions().slot_status(ticket), Status::ok);
  // The rest comes in late: nothing is answered twice.
  for (std::size_t i = 1; i < reads.size(); ++i) {
    rails_[0]->events.push_back({fabric::Event::Kind::read, 0, 0, reads[i].context, 0});
  }
  for (const auto& read : rails_[1]->reads) {
    rails_[1]->events.push_back({fabric::Event::Kind::read, 0, 0, read.context, 0});
  }
  engine_->progress();
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(EngineTest, MessagesThatDoNotFitAreDroppedAndCounted) {
  open(1);
  rails_[0]->deliver({});
  auto alien = frame(0, 1);
  alien[8] ^= std::byte{1};  // another session
  rails_[0]->deliver(alien);
  auto nobody = frame(0, 1);
  nobody[4] = std::byte{9};  // a rank that does not exist
  rails_[0]->deliver(nobody);
  auto future = frame(0, 1, 50);  // acknowledges what was never sent
  rails_[0]->deliver(future);
  rails_[0]->land(0xffffffffU);
  engine_->progress();
  EXPECT_EQ(signals_[0], 1U) << "only the frame with a senseless acknowledgement counts, without it";
  EXPECT_EQ(flow_->sender.acknowledged(), 0U);
  const auto statistics = engine_->statistics();
  EXPECT_EQ(statistics.dropped_malformed, 3U);
  EXPECT_EQ(statistics.dropped_stale, 2U);
}

TEST_F(EngineTest, APassHandlesAtMostABatchOfEachRail) {
  Settings settings;
  settings.batch = 4;
  open(2, settings);
  for (std::uint32_t i = 0; i < 12; ++i) rails_[0]->deliver(frame(i, 1));
  engine_->progress();
  EXPECT_EQ(signals_[0], 4U);
  engine_->progress();
  EXPECT_EQ(signals_[0], 8U);
}

TEST_F(EngineTest, HeldFramesAreReleasedABatchAtATime) {
  Settings settings;
  settings.batch = 4;
  open(1, settings);
  for (std::uint32_t i = 1; i <= 12; ++i) rails_[0]->deliver(frame(i, 1));
  for (int i = 0; i < 3; ++i) engine_->progress();
  EXPECT_EQ(signals_[0], 0U);
  rails_[0]->deliver(frame(0, 1));
  engine_->progress();
  EXPECT_LE(signals_[0], 1U + 2U * 4U);
  for (int i = 0; i < 4; ++i) engine_->progress();
  EXPECT_EQ(signals_[0], 13U);
}

TEST_F(EngineTest, ClosingLeavesNoRegistrationBehind) {
  open(2);
  put_small();
  Ticket ticket;
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, bulk(200'000), Operation::Kind::read, ticket));
  engine_.reset();  // ScriptRail is gone with it; the sanitizers watch the rest
}

TEST_F(EngineTest, QuietRailsAreLookedAtNowAndThenWhileAnotherIsBusy) {
  open(2);
  rails_[1]->quiet_answer = true;
  const auto polls_of_quiet = [&](int passes, bool busy) {
    const std::size_t before = rails_[1]->polls;
    for (int i = 0; i < passes; ++i) {
      if (busy) rails_[0]->deliver(acknowledgement(0, kFirstGrant));
      const std::size_t own = rails_[0]->polls;
      engine_->progress();
      EXPECT_EQ(rails_[0]->polls, own + 1);
    }
    return rails_[1]->polls - before;
  };
  polls_of_quiet(1, true);
  EXPECT_EQ(polls_of_quiet(80, true), 10U);
  // What it brings is not left waiting.
  rails_[1]->deliver(frame(0, 5));
  polls_of_quiet(8, true);
  EXPECT_EQ(signals_[0], 5U);
  // Where nobody is busy, nobody is left out.
  polls_of_quiet(100, false);
  EXPECT_EQ(polls_of_quiet(16, false), 16U);
}

TEST_F(EngineTest, FramesOfOneMessageLeaveTogether) {
  open(1);
  const std::vector<std::byte> chunk(Engine::kMostMessage);
  const ScriptRail& rail = *rails_[0];
  // The first are full; the last is short, and waits for no company.
  for (int message = 0; message < 3; ++message) {
    const std::uint64_t rings = rail.rings;
    const std::size_t sends = rail.sends.size();
    std::uint64_t number = 0;
    for (int i = 0; i < 4; ++i)
      ASSERT_TRUE(engine_->submissions().try_message(*flow_, {1, 0, 0, chunk, {}, true}, number));
    EXPECT_EQ(rail.rings, rings);
    ASSERT_TRUE(
        engine_->submissions().try_message(*flow_, {1, 0, 0, std::span(chunk).first(8), {}, false, true}, number));
    EXPECT_EQ(rail.rings, rings + 1);
    EXPECT_EQ(rail.sends.size(), sends + 5) << "of message " << message;
  }
}

}  // namespace
}  // namespace railyard::transport
