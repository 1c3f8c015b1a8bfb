/// An operation that the target refuses fails alone, in sequence and with a cause.
#include "refusal_fixture.hpp"

namespace railyard::transport {
namespace {

std::vector<std::byte> word(std::uint64_t value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

using Records = std::vector<std::pair<wire::RecordHeader, std::vector<std::byte>>>;

/// At the target: rank 0 is told to do things by rank 1.
class RefusingTest : public RefusalTest {
 protected:
  void open() {
    RefusalTest::open(1);
    rails_[0]->complete_at_once = true;
  }
  void deliver(std::uint32_t sequence, const Records& records) {
    rails_[0]->deliver(frame_of(wire::FrameKind::sequenced, sequence, records));
    engine_->progress();
  }
  std::pair<wire::RecordHeader, std::vector<std::byte>> put(std::uint32_t exposed_region, std::uint64_t offset) const {
    return {{wire::RecordKind::put, 0, 0, exposed_region, offset}, word(77)};
  }
  std::pair<wire::RecordHeader, std::vector<std::byte>> signal(std::uint32_t exposed_region, bool joined = false,
                                                               std::uint8_t op = 0, std::uint64_t index = 0) const {
    return {wire::joined({wire::RecordKind::signal, op, 0, exposed_region, index}, joined), word(1)};
  }
  std::pair<wire::RecordHeader, std::vector<std::byte>> atomic(std::uint8_t op, std::uint64_t offset,
                                                               std::uint32_t request = 0) const {
    const wire::AtomicBody body{1, 0, request, 8};
    const auto bytes = std::as_bytes(std::span(&body, 1));
    return {{wire::RecordKind::atomic, op, 0, exposed_region_id_, offset}, {bytes.begin(), bytes.end()}};
  }
  /// The refusals of the last notice that tells of some.
  std::vector<wire::RefusedRecords> told() const {
    std::vector<wire::RefusedRecords> found;
    for (const auto& sent : rails_[0]->sends) {
      if (sent.header().kind != wire::FrameKind::notice) continue;
      wire::RecordHeader record;
      std::memcpy(&record, sent.bytes.data() + wire::kRecordsAt, sizeof record);
      if (record.kind != wire::RecordKind::refused) continue;
      found.resize(record.length / sizeof(wire::RefusedRecords));
      std::memcpy(found.data(), sent.bytes.data() + wire::kRecordsAt + sizeof record, record.length);
    }
    return found;
  }
  std::size_t tellings() const { return rails_[0]->notices(wire::RecordKind::refused).size(); }
  std::uint32_t acknowledged() const { return rails_[0]->sends.back().header().acknowledged; }
  void confirm(const wire::RefusedRecords& refused) {
    rails_[0]->deliver(notice({wire::RecordKind::confirmed, 0, 0, 0, refused.pack()}));
    engine_->progress();
  }
};

TEST_F(RefusingTest, EveryCauseIsTold) {
  open();
  const std::uint32_t gone = exposed_region_id_ + 1;
  deliver(0, {put(gone, 0), put(exposed_region_id_, 1U << 20U), signal(exposed_region_id_, false, 9),
              signal(exposed_region_id_, false, 0, 99), atomic(77, 0), atomic(0, 4), atomic(0, 1U << 20U),
              atomic(0x22, 0), signal(exposed_region_id_)});
  pass(2);
  EXPECT_EQ(signals_[0], 1U) << "the last one is good";
  std::vector<FailureCause> causes;
  std::vector<std::uint16_t> records;
  for (const auto& each : told()) {
    EXPECT_EQ(each.sequence, 0U);
    causes.push_back(static_cast<FailureCause>(each.cause));
    records.push_back(each.first);
  }
  using enum FailureCause;
  EXPECT_EQ(causes, (std::vector{not_exposed, out_of_range, unknown_code, out_of_range, unknown_code, misaligned,
                                 out_of_range, unknown_code}));
  EXPECT_EQ(records, (std::vector<std::uint16_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(RefusingTest, NothingIsAcknowledgedBeforeTheOriginKnows) {
  open();
  deliver(0, {signal(exposed_region_id_)});
  deliver(1, {signal(exposed_region_id_ + 1)});
  deliver(2, {signal(exposed_region_id_)});
  pass(5);
  EXPECT_EQ(signals_[0], 2U) << "the flow goes on";
  EXPECT_EQ(tellings(), 1U);
  EXPECT_EQ(acknowledged(), 1U);
  pass(50);
  EXPECT_GE(tellings(), 2U) << "it may have been lost";
  ASSERT_EQ(told().size(), 1U);
  confirm(told()[0]);
  pass(2);
  EXPECT_EQ(acknowledged(), 3U);
  const std::size_t before = tellings();
  pass(100);
  EXPECT_EQ(tellings(), before);
}

TEST_F(RefusingTest, TheSignalOfARefusedPutIsNotApplied) {
  open();
  deliver(0, {put(exposed_region_id_, 1U << 20U), signal(exposed_region_id_, true),
              signal(exposed_region_id_, false, 0, 1)});
  pass(2);
  EXPECT_EQ(signals_[0], 0U);
  EXPECT_EQ(signals_[1], 1U) << "that one is of another operation";
  ASSERT_EQ(told().size(), 1U);
  EXPECT_EQ(told()[0].count, 1U);
}

TEST_F(RefusingTest, AFetchIsToldByItsReplyAlone) {
  open();
  deliver(0, {atomic(77, 0, 0x10001)});
  pass(2);
  EXPECT_EQ(tellings(), 0U);
  bool replied = false;
  for (const auto& sent : rails_[0]->sends) {
    if (sent.header().kind != wire::FrameKind::sequenced) continue;
    wire::RecordHeader record;
    std::memcpy(&record, sent.bytes.data() + wire::kRecordsAt, sizeof record);
    replied = record.kind == wire::RecordKind::reply &&
              static_cast<FailureCause>(record.detail) == FailureCause::unknown_code;
  }
  EXPECT_TRUE(replied);
}

TEST_F(RefusingTest, AFrameThatSaysNothingFillsItsPlaceAndTakesItsSignalAway) {
  open();
  deliver(3, {signal(exposed_region_id_),
              signal(exposed_region_id_, false, 0, 1)});  // came early: the signal of segments 0 to 2
  deliver(1, {{{wire::RecordKind::nothing, 0, 0, 1, 3}, {}}});
  chunk_lands(0);
  engine_->progress();
  EXPECT_EQ(signals_[0], 0U);
  chunk_lands(2);
  engine_->progress();
  EXPECT_EQ(signals_[0], 0U) << "its put has failed";
  EXPECT_EQ(signals_[1], 1U) << "this one is of another operation";
  deliver(4, {signal(exposed_region_id_)});
  EXPECT_EQ(signals_[0], 1U);
  EXPECT_EQ(tellings(), 0U);
}

TEST_F(RefusingTest, MoreRefusalsThanANoticeHoldsAreToldInTurn) {
  open();
  constexpr std::uint32_t kFrames = 100;
  for (std::uint32_t i = 0; i < kFrames; ++i) {
    deliver(i, {signal(exposed_region_id_ + 1)});
    pass(1);
  }
  std::size_t known = 0;
  for (int round = 0; round < 20 && acknowledged() < kFrames; ++round) {
    const auto batch = told();
    ASSERT_FALSE(batch.empty());
    EXPECT_EQ(batch.front().sequence, known);
    known += batch.size();
    confirm(batch.back());
    pass(2);
  }
  EXPECT_EQ(known, kFrames);
  EXPECT_EQ(acknowledged(), kFrames);
}

/// At the origin: rank 0 has asked, rank 1 refuses.
class RefusedTest : public RefusalTest {
 protected:
  void open(std::size_t rails = 1) {
    RefusalTest::open(rails);
    for (auto* rail : rails_) rail->complete_at_once = true;
  }
  std::uint64_t put_signal(bool with_put) {
    static constexpr std::array<std::byte, 8> kBytes{};
    const PutRecord put{7, 0, kBytes};
    const SignalRecord signal{7, 0, SignalOp::add, 1};
    std::uint64_t number = 0;
    EXPECT_TRUE(engine_->submissions().try_records(*flow_, with_put ? &put : nullptr, &signal, number));
    return number;
  }
  void refuse(std::uint32_t sequence, std::uint16_t first, std::uint16_t count = 1,
              FailureCause cause = FailureCause::not_exposed) {
    const wire::RefusedRecords refused{sequence, first, count, static_cast<std::uint8_t>(cause)};
    rails_[0]->deliver(notice({wire::RecordKind::refused, 0, 0, 0, 0}, std::as_bytes(std::span(&refused, 1))));
    engine_->progress();
  }
  FailureCause cause_of(std::uint64_t number) const {
    const auto failure = flow_->failures.find(number);
    return failure ? failure->cause : FailureCause::none;
  }
};

TEST_F(RefusedTest, ARefusalFailsItsOperationAndNoOther) {
  open();
  flow_->sender.corked = true;
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < 3; ++i) numbers.push_back(put_signal(true));  // records 0 to 5
  std::uint64_t before = 0;
  Ticket fetch;
  ASSERT_TRUE(engine_->submissions().try_atomic(*flow_, {7, 0, AtomicOp::add, {1, 0, 0, 8}}, &before,
                                                fetch));  // 6: has no number
  numbers.push_back(put_signal(false));                   // 7
  flow_->sender.corked = false;
  engine_->push(*flow_);
  ASSERT_EQ(rails_[0]->sends.size(), 1U);
  refuse(0, 3);  // the signal of the second
  refuse(0, 7, 1, FailureCause::out_of_range);
  EXPECT_EQ(flow_->completed.load(), 0U) << "not before it is acknowledged";
  acknowledge(1);
  EXPECT_EQ(flow_->completed.load(), numbers.back());
  EXPECT_EQ(cause_of(numbers[0]), FailureCause::none);
  EXPECT_EQ(cause_of(numbers[1]), FailureCause::not_exposed);
  EXPECT_EQ(cause_of(numbers[2]), FailureCause::none);
  EXPECT_EQ(cause_of(numbers[3]), FailureCause::out_of_range);
  EXPECT_FALSE(engine_->completions().slot_done(fetch));
  EXPECT_EQ(engine_->completions().outstanding(), 1U) << "the fetch";
  EXPECT_FALSE(flow_->failed.load());
}

TEST_F(RefusedTest, ARefusalIsConfirmedEveryTimeItIsTold) {
  open();
  const std::uint64_t number = put_signal(false);
  refuse(0, 0);
  refuse(0, 0);
  acknowledge(1);
  refuse(0, 0);
  pass(1);
  EXPECT_EQ(cause_of(number), FailureCause::not_exposed);
  const auto confirmed = rails_[0]->notices(wire::RecordKind::confirmed);
  ASSERT_EQ(confirmed.size(), 3U);
  for (const auto& each : confirmed) EXPECT_EQ(wire::Confirmed::of(each).known, 0U);
  EXPECT_EQ(engine_->untold_failure(1), std::nullopt) << "somebody has asked";
}

TEST_F(RefusedTest, ARefusalThatNobodyAskedAboutIsToldOnce) {
  open();
  const std::uint64_t number = put_signal(true);
  refuse(0, 0, 2);
  acknowledge(1);
  ASSERT_TRUE(engine_->completions().any_failed());
  const auto error = engine_->untold_failure(1);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status(), Status::not_found);
  EXPECT_EQ(error->where().peer, 1);
  EXPECT_EQ(engine_->untold_failure(1), std::nullopt);
  EXPECT_EQ(cause_of(number), FailureCause::not_exposed) << "its ticket fails all the same";
}

TEST_F(RefusedTest, ARefusedFetchWithoutRoomForItsReplyFails) {
  open();
  std::uint64_t before = 0;
  Ticket fetch;
  ASSERT_TRUE(engine_->submissions().try_atomic(*flow_, {7, 0, AtomicOp::add, {1, 0, 0, 8}}, &before, fetch));
  refuse(0, 0, 1, FailureCause::unknown_code);
  acknowledge(1);
  EXPECT_TRUE(engine_->completions().slot_done(fetch));
  EXPECT_EQ(engine_->completions().slot_failure(fetch)->cause, FailureCause::unknown_code);
  EXPECT_EQ(engine_->completions().outstanding(), 0U);
}

}  // namespace
}  // namespace railyard::transport
