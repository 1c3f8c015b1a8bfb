/// Two links that face each other share one queue pair, whoever calls first and whatever happens to the CM messages.
#include "fabric/verbs_rails.hpp"

namespace railyard::fabric {
namespace {

constexpr LinkTag kThere{1, 1, 2};
constexpr LinkTag kBack{2, 1, 1};

LinkTag in_epoch(LinkTag tag, std::uint32_t epoch) {
  tag.epoch = epoch;
  return tag;
}

/// With the rail of the smaller name on this side or that.
class VerbsDuplex : public VerbsRails, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    a_ = &open(0);
    b_ = &open(1);
    if ((a_->name() < b_->name()) == GetParam()) return;
    std::swap(a_, b_);
  }
  void connect_both() {
    there_ = connect(*a_, *b_, kThere);
    back_ = connect(*b_, *a_, kBack);
  }
  void expect_one_pair() {
    ASSERT_TRUE(delivers(*a_, *b_, there_));
    ASSERT_TRUE(delivers(*b_, *a_, back_));
    EXPECT_TRUE(pairs_become(2)) << network_.count(Device::connected_pair).alive;
    EXPECT_EQ(pairs(0), 1u);
    EXPECT_EQ(pairs(1), 1u);
    EXPECT_EQ(a_->seen(Event::Kind::lost) + b_->seen(Event::Kind::lost), 0u);
  }
  void expect_none_after_end() {
    a_->rail->disconnect(there_);
    b_->rail->disconnect(back_);
    EXPECT_TRUE(pairs_become(0));
    EXPECT_EQ(a_->seen(Event::Kind::lost) + b_->seen(Event::Kind::lost), 0u);
  }

  Side* a_ = nullptr;
  Side* b_ = nullptr;
  RemoteId there_ = 0;
  RemoteId back_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Names, VerbsDuplex, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "smaller" : "larger"); });

TEST_P(VerbsDuplex, CrossingCallsMakeOne) {
  connect_both();
  expect_one_pair();
  EXPECT_EQ(network_.count(Device::connected_pair).created, 2u) << "a second one was made and thrown away";
  expect_none_after_end();
}

TEST_P(VerbsDuplex, TheLinkBackTakesTheOneThatStands) {
  there_ = connect(*a_, *b_, kThere);
  ASSERT_TRUE(delivers(*a_, *b_, there_));
  back_ = connect(*b_, *a_, kBack);
  expect_one_pair();
  EXPECT_EQ(network_.count(Device::connected_pair).created, 2u);
  expect_none_after_end();
}

TEST_P(VerbsDuplex, LostCmMessagesAreRepeated) {
  std::uint32_t epoch = 0;
  for (unsigned every = 2; every <= 5; ++every) {
    for (const bool at_once : {true, false}) {
      network_.lose_every(0, every);
      network_.lose_every(1, every + 1);
      there_ = connect(*a_, *b_, in_epoch(kThere, ++epoch));
      if (!at_once) pump_for(std::chrono::milliseconds(3));
      back_ = connect(*b_, *a_, in_epoch(kBack, epoch));
      SCOPED_TRACE(every);
      expect_one_pair();
      expect_none_after_end();
    }
  }
}

TEST_P(VerbsDuplex, DoubledSwappedAndLateCmMessagesDoNoHarm) {
  std::uint32_t epoch = 1;
  for (const int harm : {0, 1, 2, 3}) {
    for (const int delay : {0, 1, 10}) {
      for (const std::size_t device : {0u, 1u}) {
        if (harm != 1) network_.duplicate_datagrams(device, 1000);
        if (harm != 0) network_.swap_datagrams(device, 1000);
        network_.delay_datagrams(device, std::chrono::milliseconds(harm == 3 ? 30 : 0));
      }
      SCOPED_TRACE(::testing::Message() << harm << " " << delay);
      there_ = connect(*a_, *b_, in_epoch(kThere, epoch));
      pump_for(std::chrono::milliseconds(delay));
      back_ = connect(*b_, *a_, in_epoch(kBack, epoch++));
      expect_one_pair();
      for (const std::size_t device : {0u, 1u}) {
        network_.duplicate_datagrams(device, 0);
        network_.swap_datagrams(device, 0);
      }
      expect_none_after_end();
    }
  }
}

TEST_P(VerbsDuplex, OneEndsAndTheOtherGoesOn) {
  connect_both();
  expect_one_pair();
  for (std::uint32_t epoch = 2; epoch < 12; ++epoch) {
    network_.lose_every(epoch % 2, epoch % 4 == 0 ? 2 : 0);
    a_->rail->disconnect(there_);
    ASSERT_TRUE(pump([&] { return b_->seen(Event::Kind::left) == epoch - 1; }));
    EXPECT_EQ(b_->find(Event::Kind::left)->link.id, kThere.id);
    ASSERT_TRUE(delivers(*b_, *a_, back_));
    EXPECT_EQ(network_.count(Device::connected_pair).created, 2u);
    there_ = connect(*a_, *b_, in_epoch(kThere, epoch));
    expect_one_pair();
  }
  expect_none_after_end();
}

TEST_P(VerbsDuplex, AnEndUnderLoadTakesTheOtherAlongAndBothComeBack) {
  connect_both();
  expect_one_pair();
  for (std::uint32_t epoch = 2; epoch < 8; ++epoch) {
    network_.freeze(0);
    const auto posted = fill(*a_, *b_, there_, 20);
    const auto others = fill(*b_, *a_, back_, 20);
    a_->rail->disconnect(there_);
    network_.thaw(0);
    expect_back_once(*a_, posted);
    expect_back_once(*b_, others);
    ASSERT_TRUE(pump([&] { return b_->lost(back_) == 1; }));
    EXPECT_EQ(a_->seen(Event::Kind::lost), 0u);
    b_->rail->disconnect(back_);
    b_->log.clear();
    there_ = connect(*a_, *b_, in_epoch(kThere, epoch));
    back_ = connect(*b_, *a_, in_epoch(kBack, epoch));
    expect_one_pair();
    b_->log.clear();
  }
}

TEST_P(VerbsDuplex, AFenceShutsBothAndBothComeBackInNewEpochs) {
  connect_both();
  expect_one_pair();
  for (std::uint32_t epoch = 1; epoch < 6; ++epoch) {
    const auto posted = fill(*a_, *b_, there_, 20);
    ASSERT_TRUE(fenced(*b_, in_epoch(kThere, epoch)));
    expect_back_once(*a_, posted);
    ASSERT_TRUE(pump([&] { return a_->lost(there_) == 1 && b_->lost(back_) == 1; }));
    EXPECT_EQ(b_->seen(Event::Kind::left), 0u) << "it was fenced";
    a_->rail->disconnect(there_);
    b_->rail->disconnect(back_);
    // The old epoch is not wanted any more.
    const RemoteId old = connect(*a_, *b_, in_epoch(kThere, epoch));
    ASSERT_TRUE(pump([&] { return a_->lost(old) == (old == there_ ? 2u : 1u); }));
    EXPECT_EQ(a_->log.back().error, verbs::kUnwanted);
    a_->rail->disconnect(old);
    a_->log.clear();
    b_->log.clear();
    there_ = connect(*a_, *b_, in_epoch(kThere, epoch + 1));
    back_ = connect(*b_, *a_, in_epoch(kBack, epoch + 1));
    expect_one_pair();
  }
  expect_none_after_end();
}

TEST_P(VerbsDuplex, AnOldEpochIsRefusedWithoutHarmToThePair) {
  there_ = connect(*a_, *b_, in_epoch(kThere, 7));
  back_ = connect(*b_, *a_, in_epoch(kBack, 7));
  expect_one_pair();
  const RemoteId old = connect(*a_, *b_, in_epoch(kThere, 3));
  ASSERT_TRUE(pump([&] { return a_->lost(old) == 1; }));
  a_->rail->disconnect(old);
  a_->log.clear();
  expect_one_pair();
  expect_none_after_end();
}

TEST_P(VerbsDuplex, ACallRefusedForItsAgeDoesNotEndTheLinkBack) {
  back_ = connect(*b_, *a_, kBack);
  ASSERT_TRUE(delivers(*b_, *a_, back_));
  ASSERT_TRUE(fenced(*b_, in_epoch(kThere, 5)));
  there_ = connect(*a_, *b_, in_epoch(kThere, 5));  // it would use the pair that stands
  ASSERT_TRUE(pump([&] { return a_->lost(there_) == 1; }));
  EXPECT_EQ(a_->find(Event::Kind::lost)->error, verbs::kUnwanted);
  a_->rail->disconnect(there_);
  ASSERT_TRUE(delivers(*b_, *a_, back_));
  a_->log.clear();
  there_ = connect(*a_, *b_, in_epoch(kThere, 6));
  expect_one_pair();
  expect_none_after_end();
}

/// How far the two are when one of them is gone without a word: its CM messages are lost from then on.
enum class Vanishing : std::uint8_t { calls, answers, stands, inbound_link_only };

class VerbsVanishing : public VerbsRails, public ::testing::WithParamInterface<Vanishing> {};

INSTANTIATE_TEST_SUITE_P(Stages, VerbsVanishing,
                         ::testing::Values(Vanishing::calls, Vanishing::answers, Vanishing::stands,
                                           Vanishing::inbound_link_only));

TEST_P(VerbsVanishing, NothingIsLeftAfterAWhile) {
  Side& a = open(0);
  Side& b = open(1);
  if (GetParam() == Vanishing::calls) {
    const RemoteId there = connect(a, b, kThere);
    close(b);
    ASSERT_TRUE(pump([&] { return a.lost(there) == 1; }));
    a.rail->disconnect(there);
  } else if (GetParam() == Vanishing::answers) {
    (void)connect(a, b, kThere);
    while (network_.traffic(1).datagrams_sent == 0) poll(b);
    ASSERT_EQ(pairs(1), 1u);
    network_.lose_datagrams(0, 1000);
    close(a);
    pump_for(std::chrono::milliseconds(1));
  } else {
    const RemoteId there = connect(a, b, kThere);
    RemoteId back = 0;
    if (GetParam() == Vanishing::stands) back = connect(b, a, kBack);
    ASSERT_TRUE(delivers(a, b, there));
    ASSERT_TRUE(GetParam() != Vanishing::stands || delivers(b, a, back));
    network_.lose_datagrams(0, 1000);
    close(a);
    if (GetParam() == Vanishing::stands) {
      const auto posted = fill(b, b, back, 10);  // keys are looked at by nobody
      expect_back_once(b, posted);
      EXPECT_EQ(b.lost(back), 1u);
      b.rail->disconnect(back);
    }
  }
  EXPECT_TRUE(pairs_become(0));
}

}  // namespace
}  // namespace railyard::fabric
