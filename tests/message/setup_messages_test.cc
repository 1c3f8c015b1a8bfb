// T6, by hand: set-up messages that are cut short, of another version or not true. A channel comes to be on links that
// both ends mean, or not at all.
#include "message/setup_messages.hpp"

#include <gtest/gtest.h>

#include "exchange.hpp"
#include "yard.hpp"

namespace railyard::message {
namespace {

class SetupMessagesT6 : public ::testing::Test {
 protected:
  void open(std::uint32_t shared_links_0, std::uint32_t shared_links_1, std::uint32_t rails_0 = 2,
            std::uint32_t rails_1 = 2) {
    std::array settings{quiet_settings(), quiet_settings()};
    settings[0].shared_links = shared_links_0;
    settings[1].shared_links = shared_links_1;
    const std::array rails{rails_0, rails_1};
    yard_ = std::make_unique<Yard>(orderly(rails), settings);
  }
  /// Process 0 asks process 1; `change` is what becomes of the answer on its way.
  void ask(const std::function<void(Welcome&)>& change) {
    joining_ = *yard_->at(0).begin(0, true);
    answer_ = *yard_->at(1).answer(*read_hello(yard_->at(0).hello(joining_)));
    Welcome welcome = *read_welcome(answer_.welcome);
    change(welcome);
    concluded_.emplace(yard_->at(0).conclude(joining_, write_setup_message(welcome)));
  }
  void turn_away() {
    answer_.channel->end_at_once("its connector did not come");
    answer_.channel.reset();
  }
  void nothing_is_left() {
    EXPECT_TRUE(yard_->until([this] { return yard_->empty(); }))
        << yard_->routes(0) << " and " << yard_->routes(1) << " routes, " << yard_->flows(0) << " and "
        << yard_->flows(1) << " flows";
  }
  /// Both ends agree that a channel is on its own links, and it carries what it should.
  void works_alone(const Ends& ends) {
    ASSERT_TRUE(ends);
    EXPECT_FALSE(ends.out->statistics().shares);
    EXPECT_FALSE(ends.in->statistics().shares);
    EXPECT_EQ(ends.out->statistics().sharers, 1U);
    EXPECT_TRUE(exchange(*yard_, ends, 77, 100'000));
  }

  std::unique_ptr<Yard> yard_;
  Joining joining_;
  Worker::Answer answer_;
  std::optional<Result<std::shared_ptr<ChannelState>>> concluded_;
};

TEST_F(SetupMessagesT6, ASetupMessageOfAnotherVersionIsRefusedWithBothVersions) {
  open(1, 1);
  auto joining = *yard_->at(0).begin(0, true);
  auto hello = yard_->at(0).hello(joining);
  hello[4] = std::byte{9};
  const auto read = read_hello(hello);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.status(), Status::version_mismatch);
  EXPECT_NE(read.error().text().find("version 9"), std::string::npos) << read.error().text();
  EXPECT_NE(read.error().text().find("use one version"), std::string::npos) << read.error().text();
  yard_->at(0).abandon(joining);
}

TEST_F(SetupMessagesT6, ASetupMessageThatIsCutShortOrTooLongIsRefused) {
  open(1, 1);
  auto joining = *yard_->at(0).begin(0, true);
  auto hello = yard_->at(0).hello(joining);
  auto answer = *yard_->at(1).answer(*read_hello(hello));
  for (std::size_t bytes = 0; bytes < hello.size(); ++bytes) {
    EXPECT_FALSE(read_hello(std::span(hello).first(bytes))) << bytes;
  }
  for (std::size_t bytes = 0; bytes < answer.welcome.size(); ++bytes) {
    EXPECT_FALSE(read_welcome(std::span(answer.welcome).first(bytes))) << bytes;
  }
  hello.push_back(std::byte{});
  EXPECT_FALSE(read_hello(hello));
  answer.welcome.push_back(std::byte{});
  EXPECT_FALSE(read_welcome(answer.welcome));
  EXPECT_FALSE(read_hello(answer.welcome));
  yard_->at(0).abandon(joining);
  answer.channel->end_at_once("it was only a test");
  answer.channel.reset();
  nothing_is_left();
}

TEST_F(SetupMessagesT6, ADigestOfOtherLinksLeadsToLinksOfItsOwnAndHarmsNobody) {
  open(2, 2);
  const Ends neighbour = yard_->join(0, 1);
  ask([](Welcome& welcome) { welcome.digest ^= 1; });
  ASSERT_TRUE(*concluded_);
  EXPECT_EQ(**concluded_, nullptr);
  EXPECT_EQ(yard_->at(0).joins_refused(), 1U);
  EXPECT_EQ(joining_.hello.shared_links, 0U) << "the next set-up message asks for links of its own";
  turn_away();
  auto answer = *yard_->at(1).answer(*read_hello(yard_->at(0).hello(joining_)));
  auto channel = yard_->at(0).conclude(joining_, answer.welcome);
  ASSERT_TRUE(channel && *channel != nullptr);
  const Ends ends{*channel, answer.channel};
  works_alone(ends);
  EXPECT_TRUE(exchange(*yard_, neighbour, 5));
  yard_->close(ends, 0, 1);
  yard_->close(neighbour, 0, 1);
  concluded_.reset();
  nothing_is_left();
}

TEST_F(SetupMessagesT6, AnInstanceThatIsNotTheOthersIsFoundOut) {
  open(1, 1);
  for (const bool lower : {true, false}) {
    const Ends neighbour = yard_->join(0, 1);
    ask([&](Welcome& welcome) { lower ? --welcome.instance : ++welcome.instance; });
    ASSERT_TRUE(*concluded_) << concluded_->error().text();
    EXPECT_EQ(**concluded_, nullptr);
    turn_away();
    yard_->at(0).abandon(joining_);
    EXPECT_TRUE(exchange(*yard_, neighbour, 6)) << "whoever was on the true links stays there";
    yard_->close(neighbour, 0, 1);
    concluded_.reset();
    nothing_is_left();
  }
}

TEST_F(SetupMessagesT6, ANumberThatWasNotOfferedIsRefusedInWords) {
  open(2, 2);
  ask([](Welcome& welcome) { welcome.number = 7; });
  ASSERT_FALSE(*concluded_);
  EXPECT_NE(concluded_->error().text().find("shared link 7 of 2"), std::string::npos) << concluded_->error().text();
  yard_->at(0).abandon(joining_);
  turn_away();
  nothing_is_left();
}

TEST_F(SetupMessagesT6, ASharedLinkForOneThatWantedItsOwnIsRefused) {
  open(2, 2);
  joining_ = *yard_->at(0).begin(0, false);
  answer_ = *yard_->at(1).answer(*read_hello(yard_->at(0).hello(joining_)));
  Welcome welcome = *read_welcome(answer_.welcome);
  EXPECT_EQ(welcome.number, transport::RouteKey::kPrivate);
  welcome.number = 0;
  EXPECT_FALSE(yard_->at(0).conclude(joining_, write_setup_message(welcome)));
  yard_->at(0).abandon(joining_);
  turn_away();
  nothing_is_left();
}

TEST_F(SetupMessagesT6, TheTwoEndsShareAsManyLinksAsTheOneThatWantsFewer) {
  for (const std::uint32_t here : {0U, 1U, 4U}) {
    for (const std::uint32_t there : {0U, 2U, 3U}) {
      open(here, there);
      std::vector<Ends> ends;
      for (std::size_t i = 0; i < 8; ++i) ends.push_back(yard_->join(i % 2, 1 - i % 2));
      const std::size_t expected = std::min(here, there) == 0 ? 8 : std::min(here, there);
      EXPECT_EQ(yard_->routes(0), expected) << here << " and " << there;
      EXPECT_EQ(yard_->routes(1), expected) << here << " and " << there;
      for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_TRUE(exchange(*yard_, ends[i], static_cast<std::uint32_t>(i), 20'000)) << here << " and " << there;
      }
      for (std::size_t i = 0; i < 8; ++i) yard_->close(ends[i], i % 2, 1 - i % 2);
      ends.clear();
      nothing_is_left();
    }
  }
}

TEST_F(SetupMessagesT6, EndsWithDifferentNumbersOfRailsShareLinks) {
  for (const auto& [here, there] : {std::pair{1U, 3U}, std::pair{3U, 1U}, std::pair{2U, 4U}}) {
    open(1, 1, here, there);
    const std::array ends{yard_->join(0, 1), yard_->join(1, 0)};
    EXPECT_EQ(yard_->routes(0), 1U);
    EXPECT_EQ(yard_->routes(1), 1U);
    for (const Ends& each : ends) EXPECT_TRUE(exchange(*yard_, each, 9, 300'000)) << here << " and " << there;
    yard_->close(ends[0], 0, 1);
    yard_->close(ends[1], 1, 0);
  }
}

TEST_F(SetupMessagesT6, AnIdentityThatAnotherProcessHasIsRefused) {
  const std::array settings{quiet_settings(), quiet_settings(), quiet_settings()};
  const std::array<std::uint32_t, 3> rails{1, 1, 1};
  yard_ = std::make_unique<Yard>(orderly(rails), settings);
  const Ends honest = yard_->join(0, 1);
  auto joining = *yard_->at(2).begin(0, true);
  Hello hello = joining.hello;
  hello.identity = read_hello(yard_->at(0).hello(*yard_->at(0).begin(0, true)))->identity;
  EXPECT_FALSE(yard_->at(1).answer(hello)) << "the links of one process were given to another";
  yard_->at(2).abandon(joining);
  EXPECT_TRUE(exchange(*yard_, honest, 3));
  yard_->close(honest, 0, 1);
}

TEST_F(SetupMessagesT6, AProcessMayConnectToItself) {
  for (const std::uint32_t shared_links : {0U, 1U, 2U}) {
    open(shared_links, shared_links);
    std::vector<Ends> ends;
    for (int i = 0; i < 3; ++i) {
      ends.push_back(yard_->join(0, 0));
      ASSERT_TRUE(ends.back()) << shared_links << " shared links: " << yard_->why;
    }
    for (std::uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(exchange(*yard_, ends[i], i, 50'000)) << shared_links;
    for (const Ends& each : ends) yard_->close(each, 0, 0);
    ends.clear();
    nothing_is_left();
  }
}

TEST_F(SetupMessagesT6, TwoThatConnectToEachOtherAtOnceEndOnOneSetOfLinks) {
  // Each lets the other in before it has its own answer: two sets of links came to be, one of them goes.
  for (const bool first : {true, false}) {
    open(1, 1);
    std::array<Joining, 2> joining{*yard_->at(0).begin(0, true), *yard_->at(1).begin(0, true)};
    std::array<Worker::Answer, 2> answers{*yard_->at(1).answer(joining[0].hello),
                                          *yard_->at(0).answer(joining[1].hello)};
    std::array<Ends, 2> ends;
    for (const std::size_t process : first ? std::array<std::size_t, 2>{0, 1} : std::array<std::size_t, 2>{1, 0}) {
      for (int attempt = 0; attempt < 3 && !ends[process]; ++attempt) {
        auto channel = yard_->at(process).conclude(joining[process], answers[process].welcome);
        ASSERT_TRUE(channel) << channel.error().text();
        if (*channel != nullptr) {
          ends[process] = {*channel, answers[process].channel};
          continue;
        }
        answers[process].channel->end_at_once("asked again");
        answers[process] = *yard_->at(1 - process).answer(joining[process].hello);
      }
      ASSERT_TRUE(ends[process]);
    }
    for (std::uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(exchange(*yard_, ends[i], i));
    EXPECT_TRUE(yard_->until([this] { return yard_->routes(0) == 1 && yard_->routes(1) == 1; }))
        << yard_->routes(0) << " and " << yard_->routes(1) << " routes";
    for (std::uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(exchange(*yard_, ends[i], i, 100'000));
    yard_->close(ends[0], 0, 1);
    yard_->close(ends[1], 1, 0);
    for (auto& answer : answers) answer.channel.reset();
    ends = {};
    nothing_is_left();
  }
}

}  // namespace
}  // namespace railyard::message
