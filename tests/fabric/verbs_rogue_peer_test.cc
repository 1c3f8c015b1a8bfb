/// CM messages from somebody who has no business here. Without the secret they cost a look and do nothing; with it they
/// cost what they ask for, for a while, and harm nobody else.
#include "fabric/verbs_rogue_peer.hpp"

#include "fabric/verbs_rails.hpp"

namespace railyard::fabric {
namespace {

using verbs::CmMessage;
using verbs::RoguePeer;

class VerbsRoguePeer : public VerbsRails {
 protected:
  void SetUp() override {
    a_ = &open(0);
    b_ = &open(1);
    there_ = connect(*a_, *b_, {1, 1, 2});
    back_ = connect(*b_, *a_, {2, 1, 1});
    ASSERT_TRUE(works());
    rogue_ = RoguePeer::open(network_.library(), "fake2");
    ASSERT_TRUE(rogue_);
    target_ = *verbs::VerbsRailAddress::parse(b_->rail->address(), false, "");
  }
  void TearDown() override {
    rogue_.reset();
    VerbsRails::TearDown();
  }
  /// The target as somebody knows it who has to guess its secret.
  verbs::VerbsRailAddress guessed() const {
    verbs::VerbsRailAddress guess = target_;
    guess.secret = {};
    return guess;
  }
  std::uint64_t unproven() const { return dynamic_cast<verbs::VerbsRail&>(*b_->rail).unproven_messages(); }
  std::size_t made(std::size_t device) const { return network_.count(device, Device::connected_pair).created; }
  bool works() { return delivers(*a_, *b_, there_) && delivers(*b_, *a_, back_); }
  CmMessage message(CmMessage::Kind kind, std::uint64_t here, std::uint64_t there = 0) {
    CmMessage one;
    one.kind = kind;
    one.from = rogue_->address(4711);
    one.here = here;
    one.there = there;
    one.tagged = true;
    one.tag = {1000 + here, 1, 0};
    one.end = {.queue_pair = 0x4711, .first_packet = 5, .mtu = IBV_MTU_1024, .reads = 1};
    return one;
  }

  Side* a_ = nullptr;
  Side* b_ = nullptr;
  RemoteId there_ = 0;
  RemoteId back_ = 0;
  std::optional<RoguePeer> rogue_;
  verbs::VerbsRailAddress target_;
};

TEST_F(VerbsRoguePeer, CallsWithoutTheSecretCostNoQueuePairAndGetNoAnswer) {
  constexpr std::uint64_t kCalls = 30;
  const std::uint64_t answers = network_.traffic(1).datagrams_sent;
  for (std::uint64_t here = 1; here <= kCalls; ++here) {
    ASSERT_TRUE(rogue_->write(guessed(), message(CmMessage::Kind::call, here)));
    pump_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(rogue_->read());
  }
  EXPECT_EQ(unproven(), kCalls);
  EXPECT_EQ(made(1), 1u);
  EXPECT_EQ(network_.count(1, Device::address_handle).created, 1u);
  EXPECT_EQ(network_.traffic(1).datagrams_sent, answers);
  EXPECT_TRUE(works());
}

TEST_F(VerbsRoguePeer, APeerConnectsDuringAFloodOfCallsWithoutTheSecret) {
  std::uint64_t here = 0;
  const auto flood = [&] {
    for (int i = 0; i < 8; ++i) (void)rogue_->write(guessed(), message(CmMessage::Kind::call, ++here));
    (void)rogue_->read();  // makes room to send
  };
  for (std::uint64_t link = 10; link < 20; ++link) {
    const RemoteId remote = connect(*a_, *b_, {link, 1, 0});
    PostContext* const context = a_->fresh();
    ASSERT_TRUE(pump([&] {
      flood();
      return a_->rail->send(remote, a_->chunk(0, 8), context) == Post::posted;
    })) << link;
    ASSERT_TRUE(pump([&] {
      flood();
      return a_->told(context) == 1;
    }));
  }
  EXPECT_GT(unproven(), 100u);
  EXPECT_EQ(made(1), 11u);
  EXPECT_EQ(a_->seen(Event::Kind::lost) + b_->seen(Event::Kind::lost), 0u);
}

/// As if the peer itself had written it, down to the handle and the tag.
TEST_F(VerbsRoguePeer, NothingEndsWithoutTheSecret) {
  constexpr std::uint64_t kFirst = std::uint64_t{1} << 32;
  const auto as_the_peer = [&](CmMessage::Kind kind, CmMessage::Reason reason) {
    CmMessage forged = message(kind, kFirst, kFirst);
    forged.reason = reason;
    forged.from = *verbs::VerbsRailAddress::parse(a_->rail->address(), false, "");
    forged.tag = {1, 1, 2};
    return forged;
  };
  for (int kind = static_cast<int>(CmMessage::Kind::call); kind <= static_cast<int>(CmMessage::Kind::here); ++kind) {
    for (const auto reason : {CmMessage::Reason::none, CmMessage::Reason::unwanted, CmMessage::Reason::unknown}) {
      ASSERT_TRUE(rogue_->write(guessed(), as_the_peer(static_cast<CmMessage::Kind>(kind), reason)));
      pump_for(std::chrono::milliseconds(1));
      (void)rogue_->read();
    }
    ASSERT_TRUE(works()) << kind;
  }
  EXPECT_EQ(unproven(), 33u);
  EXPECT_EQ(made(0) + made(1), 2u);
  EXPECT_EQ(a_->seen(Event::Kind::left) + b_->seen(Event::Kind::left), 0u);
  // With it they are the peer's own words.
  for (int i = 0; i < 100 && b_->lost(back_) == 0; ++i) {
    ASSERT_TRUE(rogue_->write(target_, as_the_peer(CmMessage::Kind::over, CmMessage::Reason::none)));
    pump_for(std::chrono::milliseconds(1));
    (void)rogue_->read();
  }
  EXPECT_EQ(b_->lost(back_), 1u);
}

TEST_F(VerbsRoguePeer, ACallChangedInOneByteIsDropped) {
  const auto good = rogue_->seal(target_, message(CmMessage::Kind::call, 1));
  for (std::size_t i = 0; i < good.size(); ++i) {
    auto changed = good;
    changed[i] ^= std::byte{0x10};
    ASSERT_TRUE(rogue_->write(target_, changed));
    ASSERT_TRUE(pump([&] { return unproven() == i + 1; })) << i;
    (void)rogue_->read();
  }
  EXPECT_EQ(made(1), 1u);
  ASSERT_TRUE(rogue_->write(target_, good));
  EXPECT_TRUE(pump([&] { return made(1) == 2; }));
}

/// Whoever has recorded all that two rails have said to each other can say it again, while their links stand and when
/// they have gone.
TEST_F(VerbsRoguePeer, WhatIsSaidAgainDoesNothing) {
  for (const std::size_t device : {0u, 1u}) network_.record_datagrams(device);
  for (std::uint32_t epoch = 2; epoch <= 4; ++epoch) {
    a_->rail->disconnect(there_);
    ASSERT_TRUE(pump([&] { return b_->seen(Event::Kind::left) == epoch - 1; }));
    if (epoch == 3) {  // the queue pair ends, too
      b_->rail->disconnect(back_);
      ASSERT_TRUE(pairs_become(0));
      back_ = connect(*b_, *a_, {2, 2, 1});
    }
    there_ = connect(*a_, *b_, {1, epoch, 2});
    ASSERT_TRUE(works());
  }
  pump_for(std::chrono::milliseconds(50));
  auto recorded = network_.recorded_datagrams(0);
  const auto others = network_.recorded_datagrams(1);
  recorded.insert(recorded.end(), others.begin(), others.end());
  ASSERT_GT(recorded.size(), 12u);
  const verbs::CmAddress first = *verbs::VerbsRailAddress::parse(a_->rail->address(), false, "");
  const auto say_again = [&] {
    for (const auto& one : recorded) {
      const auto before = network_.traffic(0).datagrams_sent + network_.traffic(1).datagrams_sent;
      // To whom it was said, and back to who said it.
      ASSERT_TRUE(rogue_->write(first, one));
      ASSERT_TRUE(rogue_->write(target_, one));
      pump_for(std::chrono::milliseconds(1));
      EXPECT_EQ(network_.traffic(0).datagrams_sent + network_.traffic(1).datagrams_sent, before);
      (void)rogue_->read();
    }
  };
  const std::size_t before = made(0) + made(1);
  const std::size_t left = a_->seen(Event::Kind::left) + b_->seen(Event::Kind::left);
  say_again();
  EXPECT_TRUE(works());
  EXPECT_EQ(a_->seen(Event::Kind::left) + b_->seen(Event::Kind::left), left);
  EXPECT_EQ(a_->seen(Event::Kind::lost) + b_->seen(Event::Kind::lost), 0u);
  a_->rail->disconnect(there_);
  b_->rail->disconnect(back_);
  ASSERT_TRUE(pairs_become(0));
  pump_for(std::chrono::milliseconds(50));
  say_again();
  EXPECT_EQ(made(0) + made(1), before);
}

TEST_F(VerbsRoguePeer, CallsThatNobodyFollowsUpAreForgotten) {
  constexpr std::uint64_t kCalls = 30;
  for (std::uint64_t here = 1; here <= kCalls; ++here) {
    // The same call again is the same.
    for (int again = 0; again < 3; ++again) {
      ASSERT_TRUE(rogue_->write(target_, message(CmMessage::Kind::call, here)));
      pump_for(std::chrono::milliseconds(1));
      while (rogue_->read()) {
      }
    }
  }
  // No more than one for each call; fewer where this loop took so long that the first are forgotten already.
  EXPECT_LE(pairs(1), 1 + kCalls);
  EXPECT_GT(pairs(1), 1u);
  EXPECT_TRUE(works());
  EXPECT_TRUE(pairs_become(2));
  EXPECT_TRUE(works());
  EXPECT_EQ(a_->seen(Event::Kind::lost) + b_->seen(Event::Kind::lost), 0u);
}

TEST_F(VerbsRoguePeer, CmMessagesAboutPairsOfOthersChangeNothing) {
  // The first queue pair of a rail is at slot 0 in its first epoch.
  constexpr std::uint64_t kFirst = std::uint64_t{1} << 32;
  for (int kind = static_cast<int>(CmMessage::Kind::answer); kind <= static_cast<int>(CmMessage::Kind::here); ++kind) {
    for (const auto reason : {CmMessage::Reason::none, CmMessage::Reason::unwanted, CmMessage::Reason::unknown}) {
      CmMessage forged = message(static_cast<CmMessage::Kind>(kind), 9, kFirst);
      forged.reason = reason;
      forged.tag = {1, 1, 2};
      ASSERT_TRUE(rogue_->write(target_, forged));
      pump_for(std::chrono::milliseconds(1));
      while (rogue_->read()) {
      }
    }
    ASSERT_TRUE(works()) << kind;
  }
  EXPECT_EQ(pairs(0) + pairs(1), 2u);
  EXPECT_EQ(a_->seen(Event::Kind::left) + b_->seen(Event::Kind::left), 0u);
}

/// T2: places of queue pairs are used again, under another name each time.
TEST_F(VerbsRoguePeer, AHandleIsNeverTheSameAndItsPlaceNeverFar) {
  std::vector<std::uint64_t> handles;
  for (std::uint64_t here = 1; here <= 100; ++here) {
    ASSERT_TRUE(rogue_->write(target_, message(CmMessage::Kind::call, here)));
    std::optional<CmMessage> answer;
    ASSERT_TRUE(pump([&] { return (answer = rogue_->read()) && answer->kind == CmMessage::Kind::answer; }));
    EXPECT_THAT(handles, ::testing::Not(::testing::Contains(answer->here)));
    EXPECT_LT(answer->here & 0xffffffff, 4u);
    handles.push_back(answer->here);
    ASSERT_TRUE(rogue_->write(target_, message(CmMessage::Kind::over, here, answer->here)));
    ASSERT_TRUE(pump([&] { return pairs(1) == 1; }));
    while (rogue_->read()) {
    }
  }
  EXPECT_TRUE(works());
}

TEST_F(VerbsRoguePeer, WhoAsksAfterAPairThatIsNotHereHearsSo) {
  for (const auto kind : {CmMessage::Kind::ask, CmMessage::Kind::ready, CmMessage::Kind::bind}) {
    ASSERT_TRUE(rogue_->write(target_, message(kind, 9, 0xdeadbeef)));
    std::optional<CmMessage> answer;
    ASSERT_TRUE(pump([&] { return (answer = rogue_->read()).has_value(); }));
    EXPECT_EQ(answer->kind, CmMessage::Kind::over);
    EXPECT_EQ(answer->there, 9u);
  }
}

TEST(VerbsCmMessages, OfOtherVersionsOrWithNonsenseAreNone) {
  CmMessage message;
  message.kind = CmMessage::Kind::call;
  message.from.queue_pair = 7;
  message.end = {.queue_pair = 8, .first_packet = 9, .mtu = IBV_MTU_1024, .reads = 1};
  const auto good = message.pack();
  ASSERT_TRUE(CmMessage::parse(good));
  EXPECT_LE(good.size() + CmMessage::kMacBytes, CmMessage::kMostBytes);
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_FALSE(CmMessage::parse(std::span(good).first(bytes))) << bytes;
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(CmMessage::parse(longer));
  const auto refused = [&](const std::function<void(CmMessage&)>& change) {
    CmMessage one = message;
    change(one);
    return !CmMessage::parse(one.pack());
  };
  EXPECT_TRUE(refused([](CmMessage& one) { one.kind = static_cast<CmMessage::Kind>(0); }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.kind = static_cast<CmMessage::Kind>(12); }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.reason = static_cast<CmMessage::Reason>(9); }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.secret_of = static_cast<CmMessage::SecretOf>(2); }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.from.queue_pair = 0; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.queue_pair = 0; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.queue_pair = 1 << 24; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.first_packet = 1 << 24; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.mtu = 0; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.mtu = 6; }));
}

}  // namespace
}  // namespace railyard::fabric
