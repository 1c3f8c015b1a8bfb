/// The two halves of a flow against each other, with nothing between them but a list of packets: no rail, no clock.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/random.hpp"
#include "transport/flow_receiver.hpp"
#include "transport/flow_sender.hpp"

namespace railyard::transport {
namespace {

constexpr std::uint32_t kWindow = 64;

/// A sender, a receiver, and between them packets that are lost, doubled and reordered. What is lost is lost with its
/// link, and sent again once the receiver has said what it has: as failover does it.
class Halves {
 public:
  Halves(std::uint32_t first, std::uint64_t seed)
      : sender_(first), receiver_(first), first_(first), expected_(first), random_(seed) {}

  void run(std::uint32_t segments) {
    while (sender_.acknowledged() != first_ + segments) {
      ASSERT_LT(++turns_, 200 * segments) << "it hangs";
      if (sender_.next_sequence() != first_ + segments && sender_.may_send(kWindow)) send();
      if (random_.below(100) < 60) arrive();
      if (random_.below(100) < 30) report();
      if (random_.below(100) < 2) lose_link();
      resend();
    }
    EXPECT_EQ(applied_, segments);
    EXPECT_EQ(sender_.oldest(), nullptr);
    EXPECT_TRUE(sender_.replay().empty());
  }

 private:
  struct Packet {
    std::uint32_t sequence;
    std::uint16_t link;
  };

  void send() {
    auto segment = std::make_unique<Segment>();
    segment->sequence = sender_.next_sequence();
    segment->operation = &operation_;
    segment->link = static_cast<std::uint16_t>(random_.below(2));
    sender_.sent(segment.get());
    // A grant is never overrun.
    EXPECT_LT(sender_.next_sequence() - 1 - receiver_.next(), kWindow);
    post(*segment);
    segments_.push_back(std::move(segment));
  }
  void post(const Segment& segment) {
    if (random_.below(100) < 5) return;  // its link swallows it
    packets_.push_back({segment.sequence, segment.link});
    if (random_.below(100) < 5) packets_.push_back(packets_.back());
  }
  void arrive() {
    if (packets_.empty()) return;
    const std::size_t which = random_.below(std::min<std::size_t>(packets_.size(), 8));
    const Packet packet = packets_[which];
    packets_.erase(packets_.begin() + static_cast<std::ptrdiff_t>(which));
    switch (receiver_.on_frame(packet.sequence, kWindow)) {
      case FlowReceiver::Arrival::in_turn:
        apply(packet.sequence);
        receiver_.applied_in_turn();
        break;
      case FlowReceiver::Arrival::early: {
        buffers_.push_back(std::make_unique<memory::Buffer>());
        buffers_.back()->bytes = packet.sequence;
        receiver_.hold(packet.sequence, buffers_.back().get());
        break;
      }
      case FlowReceiver::Arrival::again:
        receiver_.owe_report();
        break;
      case FlowReceiver::Arrival::beyond:
        ADD_FAILURE() << "an honest sender's segment is beyond the grant";
    }
    while (receiver_.ready()) {
      memory::Buffer* const held = receiver_.take_next();
      ASSERT_NE(held, nullptr);
      apply(held->bytes);
      receiver_.advance();
    }
  }
  void apply(std::uint32_t sequence) {
    EXPECT_EQ(sequence, expected_) << "out of turn, or twice";
    expected_ = sequence + 1;
    ++applied_;
  }
  void report() {
    if (!receiver_.owes_report()) return;
    const std::uint32_t acknowledged = receiver_.acknowledged();
    const std::uint32_t limit = receiver_.grant(kWindow);
    receiver_.reported();
    if (random_.below(100) < 10) return receiver_.owe_report();  // lost: said again
    reports_.push_back({acknowledged, limit});
    while (reports_.size() > random_.below(4)) {
      const std::uint32_t told = reports_.front().first;
      const std::uint32_t upto = reports_.front().second;
      reports_.pop_front();
      const auto news = sender_.on_report(told, upto, [&](Segment* segment) {
        EXPECT_LT(static_cast<std::int32_t>(segment->sequence - told), 0);
        if (segment->again) sender_.forget_again(*segment);
      });
      EXPECT_NE(news, FlowSender::News::impossible);
    }
  }
  /// Its packets are gone; the receiver says what it has, and the rest is sent again.
  void lose_link() {
    const auto link = static_cast<std::uint16_t>(random_.below(2));
    std::erase_if(packets_, [&](const Packet& packet) { return packet.link == link; });
    sender_.on_link_lost(link);
    std::vector<std::uint64_t> words(wire::kMaxWindow / 64U);
    const std::uint32_t next = receiver_.next();
    const std::uint32_t used = receiver_.arrived_ahead(words);
    sender_.on_fenced(
        link,
        [&](std::uint32_t sequence) {
          const std::uint32_t ahead = sequence - next;
          return ahead >= 0x80000000U || (ahead / 64U < used && (words[ahead / 64U] >> ahead % 64U & 1U) != 0);
        },
        [&](Segment& missing) { EXPECT_TRUE(sender_.send_again(missing)); });
    receiver_.owe_report();
  }
  void resend() {
    for (Segment* segment : sender_.replay()) {
      segment->again = false;
      segment->link = static_cast<std::uint16_t>(random_.below(2));
      post(*segment);
    }
    sender_.replay().clear();
  }

  FlowSender sender_;
  FlowReceiver receiver_;
  std::uint32_t first_;
  std::uint32_t expected_;
  Random random_;
  Operation operation_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<std::unique_ptr<memory::Buffer>> buffers_;
  std::vector<Packet> packets_;
  std::deque<std::pair<std::uint32_t, std::uint32_t>> reports_;
  std::uint32_t applied_ = 0;
  std::uint32_t turns_ = 0;
};

TEST(FlowHalves, EverythingTakesEffectOnceInOrderWhateverTheLinksDo) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    // Half of them where the numbers go round.
    Halves halves(seed % 2 == 0 ? UINT32_MAX - 500 : 0, seed);
    halves.run(2000);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(FlowSenderTest, ReportsThatAreOldOrImpossibleChangeNothing) {
  FlowSender sender(100);
  Segment segments[4];
  for (Segment& segment : segments) {
    segment.sequence = sender.next_sequence();
    sender.sent(&segment);
  }
  int done = 0;
  const auto count = [&](Segment*) { ++done; };
  EXPECT_EQ(sender.on_report(105, 200, count), FlowSender::News::impossible) << "more than was sent";
  EXPECT_EQ(sender.acknowledged(), 100U);
  EXPECT_EQ(sender.on_report(102, 110, count), FlowSender::News::yes);
  EXPECT_EQ(done, 2);
  EXPECT_EQ(sender.on_report(101, 300, count), FlowSender::News::old) << "overtaken by a later one";
  EXPECT_EQ(sender.acknowledged(), 102U);
  EXPECT_EQ(sender.oldest(), &segments[2]);
  EXPECT_EQ(sender.on_report(102, 102 + wire::kMaxWindow + 1, count), FlowSender::News::yes);
  Segment more[12];
  for (Segment& segment : more) {
    EXPECT_TRUE(sender.may_send(1000));
    sender.sent(&segment);
  }
  EXPECT_FALSE(sender.may_send(1000)) << "a grant beyond any window is not believed";
}

TEST(FlowSenderTest, AFenceHoldsBackWhatLandsAndNotWhatIsApplied) {
  FlowSender sender;
  Operation frame;
  Operation write;
  write.kind = Operation::Kind::write;
  sender.request_fence();
  sender.began_unordered();
  sender.enqueue(&frame);
  sender.enqueue(&write);
  EXPECT_TRUE(frame.fenced);
  EXPECT_FALSE(write.fenced) << "one fence, one operation";
  EXPECT_FALSE(sender.may_begin(frame)) << "a read is under way";
  sender.ended_unordered();
  Segment before;
  before.sequence = sender.next_sequence();
  sender.sent(&before);
  EXPECT_TRUE(sender.may_begin(frame));
  EXPECT_FALSE(sender.may_land()) << "what came before has not taken effect";
  sender.on_report(1, 100, [](Segment*) {});
  EXPECT_TRUE(sender.may_land());
}

TEST(FlowSenderTest, AnOperationThatIsWithdrawnGivesItsFenceBack) {
  FlowSender sender;
  Operation first;
  Operation second;
  sender.enqueue(&first);
  sender.request_fence();
  sender.enqueue(&second);
  sender.withdraw_last();
  EXPECT_EQ(sender.last(), &first);
  EXPECT_EQ(sender.queued(), 1U);
  EXPECT_TRUE(sender.fence_requested());
}

TEST(FlowSenderTest, WhatItsRailStillHoldsIsNotSentAgainYet) {
  FlowSender sender;
  Segment segment;
  segment.posted = true;
  EXPECT_FALSE(sender.send_again(segment));
  EXPECT_TRUE(segment.again);
  EXPECT_FALSE(sender.has_work());
  segment.posted = false;
  EXPECT_TRUE(sender.send_again(segment));
  EXPECT_TRUE(sender.has_work());
}

TEST(FlowReceiverTest, AGrantIsNeverTakenBack) {
  FlowReceiver receiver;
  EXPECT_EQ(receiver.grant(100), 100U);
  EXPECT_EQ(receiver.grant(20), 100U);
  EXPECT_TRUE(receiver.on_landed(99));
  EXPECT_FALSE(receiver.on_landed(100)) << "beyond the grant";
  EXPECT_FALSE(receiver.on_landed(99)) << "twice";
}

TEST(FlowReceiverTest, AFrameThatWaitsInItsTurnHasArrived) {
  FlowReceiver receiver;
  ASSERT_EQ(receiver.on_frame(0, kWindow), FlowReceiver::Arrival::in_turn);
  receiver.wait_in_turn();
  EXPECT_EQ(receiver.on_frame(0, kWindow), FlowReceiver::Arrival::again) << "it would be applied twice";
  EXPECT_TRUE(receiver.has_arrived(0)) << "its sender would send it again";
  EXPECT_EQ(receiver.acknowledged(), 0U);
  EXPECT_EQ(receiver.on_frame(1, kWindow), FlowReceiver::Arrival::early);
  receiver.advance();
  EXPECT_EQ(receiver.acknowledged(), 1U);
  EXPECT_TRUE(receiver.ready());
}

TEST(FlowReceiverTest, WhatWasRefusedIsNotAcknowledgedBeforeThePeerKnows) {
  FlowReceiver receiver;
  for (std::uint32_t sequence = 0; sequence < 3; ++sequence) {
    EXPECT_EQ(receiver.on_frame(sequence, kWindow), FlowReceiver::Arrival::in_turn);
    if (sequence == 1) {
      EXPECT_TRUE(receiver.refuse(1, 0, 1, FailureCause::out_of_range));
      EXPECT_TRUE(receiver.refuse(1, 1, 2, FailureCause::out_of_range));
    }
    receiver.advance();
  }
  ASSERT_EQ(receiver.refusals().size(), 1U) << "a run is told as one";
  EXPECT_EQ(receiver.refusals()[0].count, 3U);
  EXPECT_EQ(receiver.acknowledged(), 1U);
  EXPECT_FALSE(receiver.on_confirmed(0)) << "of another frame";
  EXPECT_TRUE(receiver.on_confirmed(receiver.refusals()[0].pack()));
  EXPECT_EQ(receiver.acknowledged(), 3U);
}

TEST(FlowReceiverTest, APeerThatSendsOnThoughNothingIsAcknowledgedIsFoundOut) {
  FlowReceiver receiver;
  std::uint32_t refused = 0;
  while (refused < 10'000'000 && receiver.refuse(refused, 0, 1, FailureCause::malformed)) ++refused;
  EXPECT_LT(refused, 10'000'000U) << "it takes any number";
}

TEST(FlowReceiverTest, AFrameThatIsSkippedIsSkippedOnce) {
  FlowReceiver receiver;
  receiver.skip(7);
  EXPECT_FALSE(receiver.take_skip(6));
  EXPECT_TRUE(receiver.take_skip(7));
  EXPECT_FALSE(receiver.take_skip(7));
}

}  // namespace
}  // namespace railyard::transport
