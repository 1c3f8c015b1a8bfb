/// An operation on memory that is not there fails alone: its link is not blamed, its flow goes on.
#include "refusal_fixture.hpp"

namespace railyard::transport {
namespace {

class BadMemoryTest : public RefusalTest {
 protected:
  std::uint64_t counter_ = 0;

  std::uint64_t put(std::size_t bytes, bool with_signal) {
    Bulk work = bulk(bytes);
    work.counter = &counter_;
    work.counter_value = 1;
    const SignalRecord signal{7, 0, SignalOp::add, 1};
    std::uint64_t number = 0;
    EXPECT_TRUE(engine_->submissions().try_write(*flow_, work, with_signal ? &signal : nullptr, number));
    return number;
  }
  FailureCause cause_of(std::uint64_t number) const {
    const auto failure = flow_->failures.find(number);
    return failure ? failure->cause : FailureCause::none;
  }
  struct Sequenced {
    std::uint32_t sequence;
    wire::RecordHeader record;
    fabric::PostContext* context;
  };
  std::vector<Sequenced> frames(std::size_t rail) const {
    std::vector<Sequenced> found;
    for (const auto& sent : rails_[rail]->sends) {
      if (sent.header().kind != wire::FrameKind::sequenced) continue;
      wire::RecordHeader record;
      std::memcpy(&record, sent.bytes.data() + wire::kRecordsAt, sizeof record);
      found.push_back({sent.header().sequence, record, sent.context});
    }
    return found;
  }
  /// Three pings answered: the link is up again.
  void bring_back(std::size_t rail) {
    for (int i = 0; i < 40 && !flow_->route->links[rail].up(); ++i) {
      pass(5);
      for (const auto& ping : rails_[rail]->notices(wire::RecordKind::ping))
        rails_[rail]->deliver(notice({wire::RecordKind::pong, 0, 0, ping.number, ping.word}));
      for (const auto& held : std::vector(rails_[rail]->held)) {
        if (held.context->tag == static_cast<std::uint8_t>(Tag::report))
          complete(rail, held.context, fabric::Event::Kind::sent);
      }
    }
    pass(1);
    ASSERT_TRUE(flow_->route->links[rail].up());
  }
};

TEST_F(BadMemoryTest, ADeadKeyFailsItsPutAloneAndNoLinkIsLost) {
  open(1);
  const std::uint64_t bad = put(kChunk, false);
  const std::uint64_t good = put(kChunk, false);
  auto writes = rails_[0]->writes;
  ASSERT_EQ(writes.size(), 2U);
  complete(0, writes[0].context, fabric::Event::Kind::failed, fabric::Blame::operation);
  complete(0, writes[1].context, fabric::Event::Kind::written);
  pass(2);
  EXPECT_EQ(rails_[0]->writes.size(), 2U) << "done again it would fail again";
  EXPECT_EQ(rails_[0]->disconnects, 0U);
  const auto sent = frames(0);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].sequence, 0U) << "its number is filled, or nothing after it would take effect";
  EXPECT_EQ(sent[0].record.kind, wire::RecordKind::nothing);
  acknowledge(2);
  EXPECT_EQ(flow_->completed.load(), good);
  EXPECT_EQ(cause_of(bad), FailureCause::bad_memory);
  EXPECT_EQ(cause_of(good), FailureCause::none);
  EXPECT_EQ(counter_, 1U) << "a failed operation advances no counter";
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
  EXPECT_FALSE(flow_->failed.load());
}

TEST_F(BadMemoryTest, TheRestOfAFailedPutIsNotSentAndItsSignalIsTakenOut) {
  open(1);
  const std::uint64_t bad = put(512 * kChunk, true);
  const std::uint64_t later = put_small();
  const std::size_t posted = rails_[0]->writes.size();
  ASSERT_GT(posted, 1U);
  ASSERT_LT(posted, 16U);
  const auto writes = rails_[0]->writes;
  complete(0, writes[0].context, fabric::Event::Kind::failed, fabric::Blame::operation);
  for (std::size_t i = 1; i < posted; ++i) complete(0, writes[i].context, fabric::Event::Kind::written);
  pass(2);
  for (const auto& frame : frames(0)) complete(0, frame.context, fabric::Event::Kind::sent);
  pass(2);
  EXPECT_EQ(rails_[0]->writes.size(), posted);
  const auto sent = frames(0);
  ASSERT_GE(sent.size(), 3U);
  EXPECT_EQ(sent[0].sequence, 0U);
  EXPECT_EQ(sent[0].record.kind, wire::RecordKind::nothing);
  EXPECT_EQ(sent[1].sequence, posted) << "for the rest";
  EXPECT_EQ(sent[1].record.kind, wire::RecordKind::nothing);
  EXPECT_EQ(sent[2].record.kind, wire::RecordKind::nothing) << "the signal";
  EXPECT_EQ(sent[2].record.number, 0U);
  acknowledge(flow_->sender.next_sequence());
  EXPECT_EQ(flow_->completed.load(), later);
  EXPECT_EQ(cause_of(bad), FailureCause::bad_memory);
  EXPECT_EQ(cause_of(later), FailureCause::none);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(BadMemoryTest, ASignalThatHasLeftIsNamedToItsTarget) {
  open(1);
  const std::uint64_t bad = put(kChunk, true);
  ASSERT_EQ(rails_[0]->writes.size(), 1U);
  ASSERT_EQ(frames(0).size(), 1U);
  complete(0, rails_[0]->writes[0].context, fabric::Event::Kind::failed, fabric::Blame::operation);
  pass(2);
  const auto sent = frames(0);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[0].sequence, 1U);
  EXPECT_EQ(sent[1].sequence, 0U);
  EXPECT_EQ(sent[1].record.kind, wire::RecordKind::nothing);
  EXPECT_EQ(sent[1].record.number, 1U);
  EXPECT_EQ(sent[1].record.word, 1U);
  acknowledge(2);
  EXPECT_EQ(cause_of(bad), FailureCause::bad_memory);
}

TEST_F(BadMemoryTest, AReadOfADeadKeyFailsAlone) {
  open(1);
  Ticket bad;
  Ticket good;
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, bulk(kChunk), Operation::Kind::read, bad));
  ASSERT_TRUE(engine_->submissions().try_unordered(*flow_, bulk(kChunk), Operation::Kind::read, good));
  const auto reads = rails_[0]->reads;
  ASSERT_EQ(reads.size(), 2U);
  complete(0, reads[0].context, fabric::Event::Kind::failed, fabric::Blame::operation);
  complete(0, reads[1].context, fabric::Event::Kind::read);
  pass(2);
  EXPECT_TRUE(engine_->completions().slot_done(bad));
  EXPECT_EQ(engine_->completions().slot_failure(bad)->cause, FailureCause::bad_memory);
  EXPECT_TRUE(engine_->completions().slot_done(good));
  EXPECT_FALSE(engine_->completions().slot_failure(good));
  EXPECT_EQ(rails_[0]->disconnects, 0U);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

TEST_F(BadMemoryTest, ALinkThatDiesWithItsCulpritMovesTheOthersAndIsNotBlamedAgain) {
  open(2);
  const std::uint64_t bad = put(kChunk, false);    // on link 1
  const std::uint64_t good = put(kChunk, false);   // on link 0
  const std::uint64_t other = put(kChunk, false);  // on link 1 again
  ASSERT_EQ(rails_[1]->writes.size(), 2U);
  complete(1, rails_[1]->writes[0].context, fabric::Event::Kind::failed, fabric::Blame::operation);
  rails_[1]->lose(rails_[1]->writes[0].to.remote);
  pass(1);
  complete(0, rails_[0]->writes[0].context, fabric::Event::Kind::written);
  pass(1);
  fenced(1, 0, 0, 0b010, 0);
  pass(2);
  ASSERT_EQ(rails_[0]->writes.size(), 2U) << "the innocent one, again";
  EXPECT_EQ(sequence(rails_[0]->writes[1]), 2U);
  bool filled = false;
  for (const auto& frame : frames(0)) filled |= frame.sequence == 0 && frame.record.kind == wire::RecordKind::nothing;
  EXPECT_TRUE(filled);
  acknowledge(3);
  EXPECT_EQ(flow_->completed.load(), other);
  EXPECT_EQ(cause_of(bad), FailureCause::bad_memory);
  EXPECT_EQ(cause_of(good), FailureCause::none);
  EXPECT_EQ(cause_of(other), FailureCause::none);
  EXPECT_EQ(engine_->statistics().links_lost, 1U);
}

TEST_F(BadMemoryTest, WhereTheRailCannotTellTheChunkIsTriedAloneAFewTimes) {
  open(1);
  const std::uint64_t innocent = put(kChunk, false);
  const std::uint64_t bad = put(kChunk, false);
  std::uint32_t epoch = 0;
  int rounds = 0;
  for (; rounds < 20 && cause_of(bad) == FailureCause::none; ++rounds) {
    // Whatever is posted along with the bad one comes back with it.
    bool breaks = false;
    for (const auto& write : rails_[0]->writes) breaks |= sequence(write) == 1;
    for (const auto& write : std::vector(rails_[0]->writes)) {
      complete(0, write.context, breaks ? fabric::Event::Kind::failed : fabric::Event::Kind::written,
               fabric::Blame::unknown);
    }
    rails_[0]->writes.clear();
    pass(1);
    if (!breaks) continue;
    bring_back(0);
    fenced(0, epoch++, rounds == 0 ? 0 : flow_->sender.acknowledged(), 0, 0);
    if (rounds > 0) acknowledge(1);
    pass(2);
  }
  EXPECT_EQ(cause_of(bad), FailureCause::bad_memory);
  EXPECT_EQ(cause_of(innocent), FailureCause::none);
  EXPECT_LE(engine_->statistics().links_lost, 4U);
  EXPECT_FALSE(flow_->failed.load());
  pass(2);
  acknowledge(2);
  EXPECT_EQ(flow_->completed.load(), bad);
}

}  // namespace
}  // namespace railyard::transport
