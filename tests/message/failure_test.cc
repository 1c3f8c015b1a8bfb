// T9: rails and peers that fail under shared channels. And T11's numbers that go round.
#include <gtest/gtest.h>

#include "base/log.hpp"
#include "channel_line.hpp"
#include "exchange.hpp"
#include "yard.hpp"

namespace railyard::message {
namespace {

const bool kQuiet = (set_log_level(LogLevel::error), true);

class FailureT9 : public ::testing::Test {
 protected:
  void open(std::span<const std::uint32_t> rails, std::size_t channels, const Settings& settings = quiet_settings()) {
    const std::vector<Settings> all(rails.size(), settings);
    yard_ = std::make_unique<Yard>(orderly(rails, 3), all);
    behaviour_.most_bytes = 20'000;
    behaviour_.most_outstanding = 4;
    for (std::size_t i = 0; i < channels; ++i) open_line(i % 2, 1 - i % 2);
  }
  ChannelLine& open_line(std::size_t from, std::size_t to) {
    Ends ends = yard_->join(from, to);
    EXPECT_TRUE(ends) << yard_->why;
    ends_.push_back(ends);
    lines_.push_back(
        std::make_unique<ChannelLine>(*yard_, ends, from, to, behaviour_, "channel " + std::to_string(lines_.size())));
    return *lines_.back();
  }
  void play(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (auto& line : lines_) {
        line->act(random_);
        line->look();
      }
      yard_->round();
    }
  }
  bool finish() {
    return yard_->until(
        [this] {
          bool all = true;
          for (auto& line : lines_) {
            line->look();
            if (line->healthy()) {
              const bool missing = line->wind_up(random_);
              all = all && !missing && line->idle() && line->arrived();
            } else {
              all = all && line->hears_the_end();
            }
          }
          return all;
        },
        60'000'000'000);
  }
  void expect_no_findings() {
    std::vector<std::string> findings;
    for (auto& line : lines_) line->report(findings);
    for (const std::string& finding : findings) ADD_FAILURE() << finding;
  }
  void close_all() {
    for (auto& line : lines_) {
      line->close(0);
      line->close(1);
    }
  }

  Random random_{11};
  LineBehaviour behaviour_;
  std::unique_ptr<Yard> yard_;
  std::vector<Ends> ends_;
  std::vector<std::unique_ptr<ChannelLine>> lines_;
};

TEST_F(FailureT9, ARailThatDiesUnder64SharedChannelsCostsNoMessageAndNobodyIsTold) {
  open(std::array<std::uint32_t, 2>{3, 3}, 64);
  ASSERT_EQ(yard_->routes(0), 1U);
  play(12);
  using fabric::sim::Carry;
  yard_->fabric.set_state(1, {Carry::errors, Carry::errors});
  play(12);
  yard_->fabric.set_state(5, {Carry::nothing, Carry::nothing});
  play(12);
  yard_->fabric.set_state(1, {});
  ASSERT_TRUE(finish());
  const WorldStatistics statistics = yard_->at(0).engine().statistics();
  EXPECT_GT(statistics.links_lost, 0U);
  EXPECT_GT(statistics.segments_replayed + yard_->at(1).engine().statistics().segments_replayed, 0U);
  EXPECT_EQ(statistics.peers_lost, 0U);
  close_all();
  EXPECT_TRUE(yard_->until([this] { return yard_->empty(); }));
  expect_no_findings();
}

TEST_F(FailureT9, ADeadPeerIsToldToEveryChannelOfItsOnceAndToNoOther) {
  Settings settings = quiet_settings();
  settings.peer_timeout_ms = 1'000;
  open(std::array<std::uint32_t, 3>{2, 2, 2}, 16, settings);
  for (int i = 0; i < 8; ++i) open_line(0, 2);
  play(40);
  yard_->fabric.kill(1, fabric::sim::Death::silent);
  const std::int64_t killed_at = yard_->fabric.now();
  ASSERT_TRUE(finish()) << "somebody still waits for a dead peer";
  EXPECT_LT(yard_->fabric.now() - killed_at, 5'000'000'000) << "a second of silence, and what it takes to see it";
  EXPECT_EQ(yard_->at(0).engine().statistics().peers_lost, 1U) << "one loss, whoever shares the links";
  // Every later call of every one of them says the same.
  for (std::size_t i = 0; i < 16; ++i) {
    const auto& survivor = i % 2 == 0 ? ends_[i].out : ends_[i].in;
    const auto call = survivor->send({}, 0, nullptr);
    ASSERT_FALSE(call);
    EXPECT_EQ(call.status(), Status::peer_lost);
    EXPECT_NE(call.error().text().find("is lost: "), std::string::npos) << call.error().text();
    EXPECT_NE(call.error().text().find("operations were under way"), std::string::npos) << call.error().text();
  }
  for (std::size_t i = 16; i < ends_.size(); ++i) EXPECT_TRUE(exchange(*yard_, ends_[i], 5));
  close_all();
  EXPECT_TRUE(yard_->until([this] { return yard_->empty(); }));
  expect_no_findings();
}

TEST_F(FailureT9, AChannelThatClosesWhileItsPeerIsSilentTakesItsMemoryBackInTime) {
  Settings settings = quiet_settings();
  settings.timeout_ms = 500;
  open(std::array<std::uint32_t, 2>{1, 1}, 3, settings);
  play(30);
  yard_->fabric.kill(1, fabric::sim::Death::silent);
  play(5);
  const std::int64_t before = yard_->fabric.now();
  close_all();
  EXPECT_LT(yard_->fabric.now() - before, 3'000'000'000);
  // The channels themselves stay until the peer is lost: it might only have been busy, and is to hear their last word.
  EXPECT_TRUE(yard_->until([this] { return yard_->empty(); }, 60'000'000'000));
  expect_no_findings();
}

TEST_F(FailureT9, AnEndThatClosedIsNotLeftWaitingForTheLastWordOfADeadPeer) {
  Settings settings = quiet_settings();
  settings.peer_timeout_ms = 1'000;
  open(std::array<std::uint32_t, 2>{1, 1}, 0, settings);
  const Ends ends = yard_->join(0, 1);
  ASSERT_TRUE(exchange(*yard_, ends, 1));
  yard_->close(0, *ends.out);
  // The peer acknowledges the disconnect, and ends without a word before it gives its own.
  for (int i = 0; i < 100; ++i) {
    yard_->pass(0);
    yard_->at(1).engine().progress();
    yard_->let_time_pass();
  }
  yard_->fabric.kill(1, fabric::sim::Death::silent);
  EXPECT_TRUE(yard_->until([this] { return yard_->empty(); })) << "nobody asks after it";
}

TEST_F(FailureT9, AnEndThatClosesWithAReceiveUnderWayTakesItsMemoryBackFromAPeerThatSleeps) {
  // The peer was told of the slot: what it begins when it wakes must not find the memory.
  open(std::array<std::uint32_t, 2>{1, 1}, 0);
  const Ends ends = yard_->join(0, 1);
  ASSERT_TRUE(exchange(*yard_, ends, 1));
  std::vector<std::byte> target(100'000);
  const std::array slots{ReceiveSlot{target, 0}};
  must(ends.out->receive(slots, false));
  for (int i = 0; i < 100; ++i) yard_->round();
  constexpr std::int64_t kSleep = 3'000'000'000;
  yard_->sleep(1, kSleep);
  const auto message = pattern(100'000, 5);
  must(ends.in->send(message, 0, nullptr));
  const std::int64_t before = yard_->fabric.now();
  yard_->close(0, *ends.out);
  EXPECT_LT(yard_->fabric.now() - before, kSleep) << "it waited for the peer";
  std::ranges::fill(target, std::byte{0x55});
  EXPECT_TRUE(yard_->until([&] { return !ends.in->send(message, 0, nullptr); })) << "the peer is not told";
  EXPECT_TRUE(std::ranges::all_of(target, [](std::byte byte) { return byte == std::byte{0x55}; }));
  yard_->close(1, *ends.in);
  EXPECT_TRUE(yard_->until([this] { return yard_->empty(); }));
}

/// Lets the flow of a channel go on as if it had already carried so many segments.
void begin_at(transport::Flow& flow, std::uint32_t sequence) {
  flow.sender = transport::FlowSender(sequence);
  flow.receiver = transport::FlowReceiver(sequence);
  flow.head_seen = sequence;
}

TEST_F(FailureT9, T11SequenceNumbersMayGoRoundWithOrWithoutADeadRail) {
  for (const bool dead_rail : {false, true}) {
    Settings settings = quiet_settings();
    settings.window = 64;
    settings.chunk_min = settings.chunk_max = 4096;
    lines_.clear();
    ends_.clear();
    open(std::array<std::uint32_t, 2>{2, 2}, 4, settings);
    for (std::size_t process = 0; process < 2; ++process) {
      for (transport::Flow* flow : yard_->at(process).engine().peers().registry().routes()[0]->flows) {
        begin_at(*flow, UINT32_MAX - 30);
      }
    }
    play(30);
    if (dead_rail) yard_->fabric.set_state(0, {fabric::sim::Carry::errors, fabric::sim::Carry::errors});
    play(200);
    ASSERT_TRUE(finish());
    bool wrapped = false;
    for (const transport::Flow* flow : yard_->at(0).engine().peers().registry().routes()[0]->flows) {
      wrapped = wrapped || flow->sender.next_sequence() < 0x80000000U;
    }
    EXPECT_TRUE(wrapped) << "not enough was sent";
    close_all();
    EXPECT_TRUE(yard_->until([this] { return yard_->empty(); }));
    expect_no_findings();
  }
}

TEST(RegionIds, T11GoRoundAndPassOverThoseInUse) {
  OwnRegions regions(UINT32_MAX - 2);
  std::vector<std::unique_ptr<fabric::Rail>> rails;
  std::array<std::array<std::byte, 64>, 8> memory;
  std::vector<std::shared_ptr<memory::Region>> held;
  std::vector<std::uint32_t> ids;
  for (auto& each : memory) {
    held.push_back(std::move(memory::Region::open({}, each, {})).value());
    ids.push_back(regions.take(held.back()));
  }
  EXPECT_EQ(ids, (std::vector<std::uint32_t>{UINT32_MAX - 1, UINT32_MAX, 1, 2, 3, 4, 5, 6})) << "0 means none";
  EXPECT_EQ(regions.take(held[0]), ids[0]);
}

}  // namespace
}  // namespace railyard::message
