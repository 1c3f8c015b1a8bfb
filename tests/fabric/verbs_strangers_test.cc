/// Letters from somebody who has no business here: they cost what they ask for, for a while, and harm nobody else.
#include "fabric/verbs_rails.hpp"
#include "fabric/verbs_stranger.hpp"

namespace railyard::fabric {
namespace {

using verbs::Letter;
using verbs::Stranger;

class VerbsStrangers : public VerbsRails {
 protected:
  void SetUp() override {
    a_ = &open(0);
    b_ = &open(1);
    there_ = connect(*a_, *b_, {1, 1, 2});
    back_ = connect(*b_, *a_, {2, 1, 1});
    ASSERT_TRUE(works());
    stranger_ = Stranger::open(network_.library(), "fake2");
    ASSERT_TRUE(stranger_);
    target_ = *verbs::RailAddress::parse(b_->rail->address(), false, "");
  }
  void TearDown() override {
    stranger_.reset();
    VerbsRails::TearDown();
  }
  bool works() { return delivers(*a_, *b_, there_) && delivers(*b_, *a_, back_); }
  Letter letter(Letter::Kind kind, std::uint64_t here, std::uint64_t there = 0) {
    Letter one;
    one.kind = kind;
    one.from = stranger_->address(4711);
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
  std::optional<Stranger> stranger_;
  verbs::RailAddress target_;
};

TEST_F(VerbsStrangers, CallsThatNobodyFollowsUpAreForgotten) {
  constexpr std::uint64_t kCalls = 30;
  for (std::uint64_t here = 1; here <= kCalls; ++here) {
    // The same call again is the same.
    for (int again = 0; again < 3; ++again) {
      ASSERT_TRUE(stranger_->write(target_, letter(Letter::Kind::call, here)));
      pump_for(std::chrono::milliseconds(1));
      while (stranger_->read()) {
      }
    }
  }
  EXPECT_EQ(pairs(1), 1 + kCalls);
  EXPECT_TRUE(works());
  EXPECT_TRUE(pairs_become(2));
  EXPECT_TRUE(works());
  EXPECT_EQ(a_->seen(Event::Kind::lost) + b_->seen(Event::Kind::lost), 0u);
}

TEST_F(VerbsStrangers, LettersAboutPairsOfOthersChangeNothing) {
  // The first queue pair of a rail is at slot 0 in its first life.
  constexpr std::uint64_t kFirst = std::uint64_t{1} << 32;
  for (int kind = static_cast<int>(Letter::Kind::answer); kind <= static_cast<int>(Letter::Kind::here); ++kind) {
    for (const auto reason : {Letter::Reason::none, Letter::Reason::unwanted, Letter::Reason::unknown}) {
      Letter forged = letter(static_cast<Letter::Kind>(kind), 9, kFirst);
      forged.reason = reason;
      forged.tag = {1, 1, 2};
      ASSERT_TRUE(stranger_->write(target_, forged));
      pump_for(std::chrono::milliseconds(1));
      while (stranger_->read()) {
      }
    }
    ASSERT_TRUE(works()) << kind;
  }
  EXPECT_EQ(pairs(0) + pairs(1), 2u);
  EXPECT_EQ(a_->seen(Event::Kind::left) + b_->seen(Event::Kind::left), 0u);
}

/// T2: places of queue pairs are used again, under another name each time.
TEST_F(VerbsStrangers, AHandleIsNeverTheSameAndItsPlaceNeverFar) {
  std::vector<std::uint64_t> handles;
  for (std::uint64_t here = 1; here <= 100; ++here) {
    ASSERT_TRUE(stranger_->write(target_, letter(Letter::Kind::call, here)));
    std::optional<Letter> answer;
    ASSERT_TRUE(pump([&] { return (answer = stranger_->read()) && answer->kind == Letter::Kind::answer; }));
    EXPECT_THAT(handles, ::testing::Not(::testing::Contains(answer->here)));
    EXPECT_LT(answer->here & 0xffffffff, 4u);
    handles.push_back(answer->here);
    ASSERT_TRUE(stranger_->write(target_, letter(Letter::Kind::over, here, answer->here)));
    ASSERT_TRUE(pump([&] { return pairs(1) == 1; }));
    while (stranger_->read()) {
    }
  }
  EXPECT_TRUE(works());
}

TEST_F(VerbsStrangers, WhoAsksAfterAPairThatIsNotHereHearsSo) {
  for (const auto kind : {Letter::Kind::ask, Letter::Kind::ready, Letter::Kind::bind}) {
    ASSERT_TRUE(stranger_->write(target_, letter(kind, 9, 0xdeadbeef)));
    std::optional<Letter> answer;
    ASSERT_TRUE(pump([&] { return (answer = stranger_->read()).has_value(); }));
    EXPECT_EQ(answer->kind, Letter::Kind::over);
    EXPECT_EQ(answer->there, 9u);
  }
}

TEST(VerbsLetters, OfOtherVersionsOrWithNonsenseAreNone) {
  Letter letter;
  letter.kind = Letter::Kind::call;
  letter.from.queue_pair = 7;
  letter.end = {.queue_pair = 8, .first_packet = 9, .mtu = IBV_MTU_1024, .reads = 1};
  const auto good = letter.pack();
  ASSERT_TRUE(Letter::parse(good));
  EXPECT_LE(good.size(), Letter::kMostBytes);
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_FALSE(Letter::parse(std::span(good).first(bytes))) << bytes;
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Letter::parse(longer));
  const auto refused = [&](const std::function<void(Letter&)>& change) {
    Letter one = letter;
    change(one);
    return !Letter::parse(one.pack());
  };
  EXPECT_TRUE(refused([](Letter& one) { one.kind = static_cast<Letter::Kind>(0); }));
  EXPECT_TRUE(refused([](Letter& one) { one.kind = static_cast<Letter::Kind>(12); }));
  EXPECT_TRUE(refused([](Letter& one) { one.reason = static_cast<Letter::Reason>(9); }));
  EXPECT_TRUE(refused([](Letter& one) { one.from.queue_pair = 0; }));
  EXPECT_TRUE(refused([](Letter& one) { one.end.queue_pair = 0; }));
  EXPECT_TRUE(refused([](Letter& one) { one.end.queue_pair = 1 << 24; }));
  EXPECT_TRUE(refused([](Letter& one) { one.end.first_packet = 1 << 24; }));
  EXPECT_TRUE(refused([](Letter& one) { one.end.mtu = 0; }));
  EXPECT_TRUE(refused([](Letter& one) { one.end.mtu = 6; }));
}

}  // namespace
}  // namespace railyard::fabric
