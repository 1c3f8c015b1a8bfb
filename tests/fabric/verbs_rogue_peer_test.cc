/// CM messages from somebody who has no business here: they cost what they ask for, for a while, and harm nobody else.
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
  EXPECT_LE(good.size(), CmMessage::kMostBytes);
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
  EXPECT_TRUE(refused([](CmMessage& one) { one.from.queue_pair = 0; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.queue_pair = 0; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.queue_pair = 1 << 24; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.first_packet = 1 << 24; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.mtu = 0; }));
  EXPECT_TRUE(refused([](CmMessage& one) { one.end.mtu = 6; }));
}

}  // namespace
}  // namespace railyard::fabric
