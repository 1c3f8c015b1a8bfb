/// Memory that is taken back under way: nothing touches it any more, and only what needed it fails.
#include "refusal_fixture.hpp"

namespace railyard::transport {
namespace {

class RevokeTest : public RefusalTest {
 protected:
  void open(std::size_t rails, Settings settings = {}) {
    RefusalTest::open(rails, std::move(settings));
    mine_.resize(64 * kChunk);
    auto region = memory::Region::open(engine_->rails(), mine_, {});
    ASSERT_TRUE(region);
    region_ = std::move(*region);
  }
  void TearDown() override { region_.reset(); }

  Bulk mine(std::size_t bytes) {
    Bulk work = bulk(0);
    work.local = mine_.data();
    work.bytes = bytes;
    work.region = region_;
    return work;
  }
  std::uint64_t put(const Bulk& work) {
    std::uint64_t number = 0;
    EXPECT_TRUE(engine_->submissions().try_write(*flow_, work, nullptr, number));
    return number;
  }
  FailureCause cause_of(std::uint64_t number) const {
    const auto failure = flow_->failures.find(number);
    return failure ? failure->cause : FailureCause::none;
  }
  std::size_t held() const {
    std::size_t count = 0;
    for (const auto* rail : rails_) count += rail->held.size();
    return count;
  }

  std::vector<std::byte> mine_;
  std::shared_ptr<memory::Region> region_;
};

TEST_F(RevokeTest, APostedWriteIsTakenBackWithItsLinkAndTheOthersAreReplayed) {
  open(2);
  const std::uint64_t bad = put(mine(kChunk));    // on link 1
  const std::uint64_t good = put(bulk(kChunk));   // on link 0
  const std::uint64_t other = put(bulk(kChunk));  // on link 1
  ASSERT_EQ(rails_[1]->writes.size(), 2U);
  const int registered = rails_[0]->registrations;
  engine_->revocation().revoke(*region_);
  EXPECT_EQ(rails_[1]->disconnects, 1U);
  EXPECT_EQ(rails_[0]->disconnects, 0U);
  EXPECT_TRUE(rails_[1]->events.empty()) << "every context has come back";
  EXPECT_EQ(rails_[0]->registrations, registered - 1);
  engine_->revocation().revoke(*region_);
  EXPECT_EQ(rails_[0]->registrations, registered - 1) << "the second time finds nothing";

  pass(1);
  complete(0, rails_[0]->writes[0].context, fabric::Event::Kind::written);
  fenced(1, 0, 0, 0b010, 0);
  pass(2);
  ASSERT_EQ(rails_[0]->writes.size(), 2U);
  EXPECT_EQ(sequence(rails_[0]->writes[1]), 2U);
  EXPECT_NE(rails_[0]->writes[1].from.address, static_cast<void*>(mine_.data()));
  acknowledge(3);
  EXPECT_EQ(flow_->completed.load(), other);
  EXPECT_EQ(cause_of(bad), FailureCause::deregistered);
  EXPECT_EQ(cause_of(good), FailureCause::none);
  EXPECT_EQ(cause_of(other), FailureCause::none);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(RevokeTest, AWriteThatHadArrivedIsASuccess) {
  open(2);
  const std::uint64_t number = put(mine(kChunk));
  engine_->revocation().revoke(*region_);
  pass(1);
  fenced(1, 0, 1, 0, 0);
  acknowledge(1);
  EXPECT_EQ(flow_->completed.load(), number);
  EXPECT_EQ(cause_of(number), FailureCause::none);
}

TEST_F(RevokeTest, WhatWaitsToBeSentFailsInItsTurn) {
  open(1);
  rails_[0]->answer = fabric::Post::busy;
  const std::uint64_t before = put(bulk(kChunk));
  const std::uint64_t bad = put(mine(kChunk));
  const std::uint64_t after = put(bulk(kChunk));
  Ticket read;
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, mine(kChunk), Operation::Kind::read, read));
  engine_->revocation().revoke(*region_);
  EXPECT_EQ(rails_[0]->disconnects, 0U) << "nothing was under way";
  rails_[0]->answer = fabric::Post::posted;
  pass(2);
  ASSERT_EQ(rails_[0]->writes.size(), 2U);
  EXPECT_TRUE(rails_[0]->reads.empty());
  EXPECT_TRUE(engine_->completions().slot_done(read));
  EXPECT_EQ(engine_->completions().slot_failure(read)->cause, FailureCause::deregistered);
  for (const auto& write : rails_[0]->writes) complete(0, write.context, fabric::Event::Kind::written);
  acknowledge(1);
  EXPECT_EQ(flow_->completed.load(), before);
  acknowledge(3);
  EXPECT_EQ(flow_->completed.load(), after);
  EXPECT_EQ(cause_of(before), FailureCause::none);
  EXPECT_EQ(cause_of(bad), FailureCause::deregistered);
  EXPECT_EQ(cause_of(after), FailureCause::none);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(RevokeTest, AReadUnderWayFailsWhenItsRailHasLetGoOfIt) {
  open(2);
  Ticket bad;
  Ticket good;
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, mine(2 * kChunk), Operation::Kind::read, bad));
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, bulk(2 * kChunk), Operation::Kind::read, good));
  engine_->revocation().revoke(*region_);
  EXPECT_EQ(held(), 0U);
  // Both links carried a chunk of it: they are made anew, and the innocent read goes out again.
  for (int i = 0; i < 60; ++i) {
    pass(5);
    for (std::size_t rail = 0; rail < 2; ++rail) {
      for (const auto& ping : rails_[rail]->notices(wire::RecordKind::ping))
        rails_[rail]->deliver(notice({wire::RecordKind::pong, 0, 0, ping.number, ping.word}));
    }
  }
  fenced(0, 0, 0, 0, 0);
  fenced(1, 0, 0, 0, 0);
  pass(5);
  EXPECT_TRUE(engine_->completions().slot_done(bad));
  EXPECT_EQ(engine_->completions().slot_failure(bad)->cause, FailureCause::deregistered);
  EXPECT_FALSE(engine_->completions().slot_done(good));
  for (std::size_t rail = 0; rail < 2; ++rail) {
    for (const auto& read : std::vector(rails_[rail]->reads)) {
      const bool still = std::ranges::any_of(
          rails_[rail]->held, [&](const ScriptRail::Held& each) { return each.context == read.context; });
      if (still) complete(rail, read.context, fabric::Event::Kind::read);
    }
  }
  pass(2);
  EXPECT_TRUE(engine_->completions().slot_done(good));
  EXPECT_FALSE(engine_->completions().slot_failure(good));
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(RevokeTest, WhatAFlowThatHasFailedLeftOnItsLinkIsTakenBackToo) {
  open(1);
  put(mine(kChunk));
  engine_->completions().fail(*flow_, Error(Status::invalid, "for the test"));
  ASSERT_EQ(rails_[0]->held.size(), 1U);
  engine_->revocation().revoke(*region_);
  EXPECT_TRUE(rails_[0]->held.empty());
  EXPECT_TRUE(rails_[0]->events.empty());
}

TEST_F(RevokeTest, AFetchedValueIsNotWrittenIntoMemoryThatIsGone) {
  open(1);
  rails_[0]->complete_at_once = true;
  Ticket fetch;
  ASSERT_TRUE(engine_->submissions().try_atomic(*flow_, {7, 0, AtomicOp::add, {1, 0, 0, 8}}, mine_.data(), fetch));
  wire::AtomicBody asked;
  std::memcpy(&asked, rails_[0]->sends[0].bytes.data() + wire::kRecordsAt + sizeof(wire::RecordHeader), sizeof asked);
  engine_->revocation().revoke(*region_);
  const std::uint64_t value = 99;
  const auto bytes = std::as_bytes(std::span(&value, 1));
  const std::pair<wire::RecordHeader, std::vector<std::byte>> reply{{wire::RecordKind::reply, 0, 0, asked.request, 0},
                                                                    {bytes.begin(), bytes.end()}};
  rails_[0]->deliver(frame_of(wire::FrameKind::sequenced, 0, std::span(&reply, 1)));
  acknowledge(1);
  EXPECT_TRUE(engine_->completions().slot_done(fetch));
  EXPECT_EQ(engine_->completions().slot_failure(fetch)->cause, FailureCause::deregistered);
  EXPECT_EQ(mine_[0], std::byte{0});
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(RevokeTest, OperationsOnBytesThatAreForgottenFailAndTheOthersDoNot) {
  open(1);
  const std::uint64_t bad = put(mine(kChunk));
  const std::uint64_t good = put(bulk(kChunk));
  engine_->revocation().revoke(std::span<const std::byte>(mine_).first(8));
  EXPECT_EQ(held(), 0U) << "the link that carried it is made anew";
  fenced(0, 0, 0, 0, 0);
  pass(1);
  EXPECT_EQ(cause_of(bad), FailureCause::deregistered);
  EXPECT_EQ(cause_of(good), FailureCause::none);
}

TEST_F(RevokeTest, ARailThatDoesNotLetGoIsStoppedAndTheOthersCarryOn) {
  open(2);
  rails_[1]->keeps_contexts = true;
  const std::uint64_t bad = put(mine(kChunk));    // on link 1
  const std::uint64_t good = put(bulk(kChunk));   // on link 0
  const std::uint64_t other = put(bulk(kChunk));  // on link 1
  engine_->revocation().revoke(*region_);
  EXPECT_EQ(rails_[1]->stops, 1) << "it might still read the memory";
  EXPECT_EQ(rails_[0]->stops, 0);
  pass(1);
  complete(0, rails_[0]->writes[0].context, fabric::Event::Kind::written);
  fenced(1, 0, 0, 0b010, 0);
  pass(2);
  ASSERT_EQ(rails_[0]->writes.size(), 2U) << "what the stopped rail had goes over the other";
  acknowledge(3);
  EXPECT_EQ(flow_->completed.load(), other);
  EXPECT_EQ(cause_of(bad), FailureCause::deregistered);
  EXPECT_EQ(cause_of(good), FailureCause::none);
  EXPECT_EQ(cause_of(other), FailureCause::none);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
  EXPECT_FALSE(engine_->revocation().holds(*region_));
  EXPECT_EQ(flow_->posted, 2U) << "the replay, and what says that one has failed";
}

}  // namespace
}  // namespace railyard::transport
