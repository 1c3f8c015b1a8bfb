/// Which flow, which link, how much: on links that nothing is posted on.
#include "transport/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

namespace railyard::transport {
namespace {

constexpr std::uint64_t kLeft = 1 << 20;

class SchedulerTest : public ::testing::Test {
 protected:
  explicit SchedulerTest() {
    const LinkLimits limits{64 * 1024, 1 << 20, false};
    route_.max_write = 4 << 20;
    route_.moved_by_us = true;
    for (std::uint16_t rail = 0; rail < 3; ++rail) {
      route_.links.emplace_back(rail, rail, 1e9, std::size_t{1} << 20, limits);
      route_.links.back().health.taken();
    }
  }
  Flow& add_flow() {
    flows_.push_back(std::make_unique<Flow>());
    Flow& flow = *flows_.back();
    flow.route = &route_;
    flow.shares.resize(route_.links.size());
    return flow;
  }
  Link& link(std::size_t index) { return route_.links[index]; }
  /// As if a chunk of that many bytes had been posted.
  void fill(Flow& flow, std::size_t index, std::uint64_t bytes) {
    link(index).chunk_posted(bytes, 1);
    flow.shares[index].bytes += bytes;
    if (flow.bytes_in_flight == 0) ++route_.bulk_flows;
    flow.bytes_in_flight += bytes;
    route_.bytes_in_flight += bytes;
  }
  /// Of an operation in host memory with that much left, what goes on the first link at once.
  std::uint32_t chunk_bytes(const Flow& flow, std::uint64_t left, std::int64_t now) {
    Operation operation;
    operation.bytes = left;
    return Scheduler::chunk_bytes(flow, link(0), operation, now);
  }

  Route route_;
  std::vector<std::unique_ptr<Flow>> flows_;
};

TEST_F(SchedulerTest, EachFlowHasItsTurnAndNoneStarves) {
  constexpr std::uint32_t kBatch = 16;
  Scheduler scheduler(kBatch);
  Operation endless;  // keeps every flow busy
  std::map<const Flow*, std::uint32_t> posted;
  for (int i = 0; i < 10; ++i) {
    Flow& flow = add_flow();
    flow.sender.enqueue(&endless);
    scheduler.add(flow);
    scheduler.add(flow);  // once is enough
  }
  for (int turn = 0; turn < 100; ++turn) {
    std::uint32_t of_turn = 0;
    EXPECT_TRUE(scheduler.take_turns([&](const Flow& flow, std::uint32_t most) {
      EXPECT_LE(most, kBatch / 4);
      posted[&flow] += most;
      of_turn += most;
      return most;
    }));
    EXPECT_LE(of_turn, kBatch);
  }
  ASSERT_EQ(posted.size(), 10U);
  for (const auto& [flow, count] : posted) EXPECT_EQ(count, 100 * kBatch / 10);
}

TEST_F(SchedulerTest, AFlowWithoutWorkLeaves) {
  Scheduler scheduler(16);
  Flow& flow = add_flow();
  scheduler.add(flow);
  EXPECT_FALSE(scheduler.take_turns([](Flow&, std::uint32_t) { return 0U; }));
  EXPECT_FALSE(scheduler.has_work());
  scheduler.add(flow);
  EXPECT_TRUE(scheduler.has_work());
  scheduler.remove(flow);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_FALSE(flow.in_active);
}

TEST_F(SchedulerTest, TheLeastLoadedLinkIsChosenAndThoseThatWereTriedAreNot) {
  Flow& flow = add_flow();
  fill(flow, 0, 1000);
  fill(flow, 1, 500);
  EXPECT_EQ(Scheduler::link_for_chunk(flow, 0, kLeft, kLeft, 0), &link(2));
  Scheduler::Tried tried = Scheduler::with(0, flow, link(2));
  EXPECT_EQ(Scheduler::link_for_chunk(flow, tried, kLeft, kLeft, 0), &link(1));
  tried = Scheduler::with(Scheduler::with(tried, flow, link(1)), flow, link(0));
  EXPECT_EQ(Scheduler::link_for_chunk(flow, tried, kLeft, kLeft, 0), nullptr);
}

TEST_F(SchedulerTest, AnIdleFlowUsesEachLinkInTurn) {
  Flow& flow = add_flow();
  std::vector<std::uint16_t> rails;
  for (int i = 0; i < 6; ++i) {
    Link* const chosen = Scheduler::link_for_chunk(flow, 0, kLeft, kLeft, 0);
    ASSERT_NE(chosen, nullptr);
    rails.push_back(chosen->rail());
    Scheduler::chunk_posted(flow, *chosen, false);
  }
  EXPECT_EQ(rails, (std::vector<std::uint16_t>{0, 1, 2, 0, 1, 2}));
}

TEST_F(SchedulerTest, ChunksOfBothEndsKeepOutOfEachOthersWay) {
  Flow& flow = add_flow();
  flow.small_chunks = 1;
  EXPECT_EQ(Scheduler::link_for_chunk(flow, 0, 64 * 1024, 64 * 1024, 0), &link(1));
  EXPECT_EQ(Scheduler::link_for_chunk(flow, 0, 16 * 1024, 16 * 1024, 0), &link(0)) << "through before they meet";
  flow.first_chunk = 2;
  EXPECT_EQ(Scheduler::link_for_chunk(flow, 0, kLeft, 16 * 1024, 0), &link(2)) << "the rest of a large operation";
}

TEST_F(SchedulerTest, AFrameGoesBehindTheChunkBeforeIt) {
  Flow& flow = add_flow();
  fill(flow, 2, 1 << 20);
  Scheduler::chunk_posted(flow, link(2), true);
  EXPECT_EQ(Scheduler::link_for_frame(flow, false, 0), &link(2)) << "it takes effect behind that anyway";
  EXPECT_EQ(Scheduler::link_for_frame(flow, false, 0), &link(0)) << "the next one does not follow a chunk";
}

TEST_F(SchedulerTest, AFrameDoesNotGoBehindWhatItDoesNotFollow) {
  Flow& flow = add_flow();
  fill(flow, 2, 1 << 20);
  Scheduler::chunk_posted(flow, link(2), false);
  EXPECT_EQ(Scheduler::link_for_frame(flow, false, 0), &link(0)) << "outside the sequence";
  Scheduler::chunk_posted(flow, link(1), true);
  EXPECT_EQ(Scheduler::link_for_frame(flow, false, 0), &link(0)) << "delivered since";
  Scheduler::chunk_posted(flow, link(2), true);
  link(2).health.on(LinkEvent::late);
  ASSERT_TRUE(link(2).suspect());
  EXPECT_EQ(Scheduler::link_for_frame(flow, false, 0), &link(0)) << "on a link that is suspected";
  Scheduler::chunk_posted(flow, link(2), true);
  EXPECT_EQ(Scheduler::link_for_frame(flow, false, Scheduler::with(0, flow, link(2))), &link(0)) << "without room";
}

TEST_F(SchedulerTest, AnAcknowledgementGoesBackTheWayTheChunkCame) {
  Flow& flow = add_flow();
  Scheduler::chunk_landed(flow, 1);
  EXPECT_EQ(Scheduler::link_for_report(flow, 0), &link(1));
  EXPECT_EQ(Scheduler::link_for_report(flow, 0), &link(0));
  Scheduler::chunk_landed(flow, 9);
  EXPECT_EQ(Scheduler::link_for_report(flow, 0), &link(0)) << "by no rail of the route";
}

TEST_F(SchedulerTest, SmallTrafficKeepsToOneLinkWhileThatHasLittleToDo) {
  Flow& flow = add_flow();
  flow.first_link = flow.small_chunks = 1;
  constexpr std::int64_t kNow = 200'000;
  for (std::size_t i = 0; i < 3; ++i) {
    const RateStamp stamp = link(i).chunk_posted(64 * 1024, 1);
    link(i).chunk_delivered(64 * 1024, stamp, 100'000);
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(Scheduler::link_for_frame(flow, false, 0), &link(1));
    EXPECT_EQ(Scheduler::link_for_report(flow, 0), &link(1));
    EXPECT_EQ(Scheduler::link_for_chunk(flow, 0, 16 * 1024, 16 * 1024, kNow), &link(1));
    link(1).frame_posted();
    Scheduler::chunk_posted(flow, link(1), false);
  }
  // Behind much data nobody waits.
  fill(flow, 1, 1 << 20);
  EXPECT_NE(Scheduler::link_for_frame(flow, false, 0), &link(1));
  EXPECT_NE(Scheduler::link_for_chunk(flow, 0, 16 * 1024, 16 * 1024, kNow), &link(1));
}

TEST_F(SchedulerTest, SmallOperationsFindOutWhetherAnotherLinkIsFaster) {
  Flow& flow = add_flow();
  const auto used = [&](std::int64_t now, std::int64_t nanoseconds) {
    Link* const chosen = Scheduler::link_for_chunk(flow, 0, 16 * 1024, 16 * 1024, now);
    const RateStamp stamp = chosen->chunk_posted(16 * 1024, now);
    chosen->chunk_delivered(16 * 1024, stamp, now + nanoseconds);
    return chosen;
  };
  // The one that both ends begin with needs 2 ms, the others 20 us.
  std::int64_t now = 1'000'000'000;
  EXPECT_EQ(used(now, 2'000'000), &link(0));
  std::map<const Link*, int> uses;
  for (int i = 0; i < 20; ++i) {
    now += 3'000'000;
    Link* const chosen = Scheduler::link_for_chunk(flow, 0, 16 * 1024, 16 * 1024, now);
    EXPECT_EQ(used(now, chosen == &link(0) ? 2'000'000 : 20'000), chosen);
    ++uses[chosen];
  }
  EXPECT_EQ(uses[&link(0)], 0);
}

/// Operations of a megabyte, each alone, on paths of the given rates; returns how long the last tenth of them took,
/// each.
class Alone {
 public:
  Alone(Flow& flow, std::vector<double> rates) : flow_(flow), rates_(std::move(rates)) {}

  double seconds_each(int operations) {
    std::int64_t before = 0;
    for (int i = 0; i < operations; ++i) {
      if (i == operations - operations / 10) before = now_;
      run();
    }
    return 1e-9 * static_cast<double>(now_ - before) / (operations / 10);
  }
  void set_rate(std::size_t index, double rate) { rates_[index] = rate; }
  void pass(std::int64_t nanoseconds) { now_ += nanoseconds; }

 private:
  static constexpr std::int64_t kDelay = 20'000;
  struct Flight {
    Link* link;
    std::uint64_t bytes;
    RateStamp stamp;
    std::int64_t arrives;
  };
  void run() {
    Operation operation;
    operation.bytes = kLeft;
    std::vector<std::int64_t> free(rates_.size(), now_);
    std::vector<Flight> flights;
    while (operation.started < operation.bytes) {
      Link* const link =
          Scheduler::link_for_chunk(flow_, 0, operation.bytes, operation.bytes - operation.started, now_);
      ASSERT_NE(link, nullptr);
      const std::uint32_t bytes = Scheduler::chunk_bytes(flow_, *link, operation, now_);
      std::int64_t& wire = free[link->rail()];
      wire += static_cast<std::int64_t>(1e9 * bytes / rates_[link->rail()]);
      flights.push_back({link, bytes, link->chunk_posted(bytes, now_), wire + kDelay});
      operation.started += bytes;
      Scheduler::chunk_posted(flow_, *link, false);
    }
    std::ranges::sort(flights, {}, &Flight::arrives);
    for (const Flight& flight : flights) {
      now_ = flight.arrives;
      flight.link->chunk_delivered(flight.bytes, flight.stamp, now_);
    }
  }

  Flow& flow_;
  std::vector<double> rates_;
  std::int64_t now_ = 1'000'000'000;
};

TEST_F(SchedulerTest, OperationsThatAreAloneDoNotWaitForALinkThatBecameSlow) {
  Flow& flow = add_flow();
  Alone alone(flow, {2e9, 2e9, 2e9});
  const double together = alone.seconds_each(200);
  alone.set_rate(1, 50e6);
  const double without = alone.seconds_each(200);
  EXPECT_LT(without, 1.8 * together) << "two links of three";
  // It is looked at again, which costs an operation now and then, and is used once it is fast.
  alone.set_rate(1, 2e9);
  for (int i = 0; i < 60; ++i) {
    alone.seconds_each(10);
    alone.pass(300'000'000);
  }
  EXPECT_LT(alone.seconds_each(200), 1.2 * together);
}

TEST_F(SchedulerTest, LinksThatDifferLittleAreAllUsed) {
  Flow& flow = add_flow();
  Alone alone(flow, {2e9, 1.5e9, 1.2e9});
  Alone one(flow, {2e9, 2e9, 2e9});
  const double mixed = alone.seconds_each(200);
  EXPECT_LT(mixed, 1.8 * one.seconds_each(200));
  for (std::size_t index = 0; index < 3; ++index) EXPECT_GT(link(index).delivered(), std::uint64_t{20} << 20) << index;
}

TEST_F(SchedulerTest, NothingNewGoesOnASuspectWhileAnotherIsTrusted) {
  Flow& flow = add_flow();
  link(0).health.on(LinkEvent::late);
  link(1).health.on(LinkEvent::late);
  ASSERT_TRUE(link(0).suspect());
  const Scheduler::Tried full = Scheduler::with(0, flow, link(2));
  EXPECT_EQ(Scheduler::link_for_frame(flow, true, full), nullptr) << "it waits for the one that is trusted";
  EXPECT_EQ(Scheduler::link_for_notice(flow, full), &link(0)) << "a notice does not";
  EXPECT_EQ(Scheduler::link_for_report(flow, full), &link(0));
  link(2).health.on(LinkEvent::late);
  EXPECT_NE(Scheduler::link_for_frame(flow, true, 0), nullptr) << "where all are, one will do";
}

TEST_F(SchedulerTest, AFrameThatIsNotFullWaitsForCompanyOnABusyLink) {
  Flow& flow = add_flow();
  for (std::size_t index = 0; index < route_.links.size(); ++index) {
    for (int frame = 0; frame < 2; ++frame) link(index).frame_posted();
    flow.shares[index].frames = 2;
  }
  EXPECT_EQ(Scheduler::link_for_frame(flow, false, 0), nullptr);
  EXPECT_NE(Scheduler::link_for_frame(flow, true, 0), nullptr);
  Flow& other = add_flow();
  EXPECT_NE(Scheduler::link_for_frame(other, false, 0), nullptr) << "it has none there: it waits for nobody's company";
}

TEST_F(SchedulerTest, BulkFlowsHaveEqualPartsOfALink) {
  Flow& greedy = add_flow();
  Flow& modest = add_flow();
  fill(modest, 0, 1);
  const Scheduler::Tried others = Scheduler::with(Scheduler::with(0, greedy, link(1)), greedy, link(2));
  std::uint64_t taken = 0;
  while (Scheduler::link_for_chunk(greedy, others, kLeft, kLeft, 0) != nullptr) {
    const std::uint32_t bytes = 4096;
    fill(greedy, 0, bytes);
    taken += bytes;
    ASSERT_LT(taken, std::uint64_t{1} << 30) << "no end";
  }
  EXPECT_LE(taken, link(0).window() / 2 + 4096);
  Flow& late = add_flow();
  EXPECT_EQ(Scheduler::link_for_chunk(late, others, kLeft, kLeft, 0), &link(0))
      << "one that has nothing there need not wait";
}

TEST_F(SchedulerTest, BulkYieldsToAFlowThatSendsSmallMessagesAlone) {
  Flow& bulk = add_flow();
  Flow& small = add_flow();
  constexpr std::int64_t kNow = 1'000'000'000;
  const std::uint64_t left = 1 << 20;
  const std::uint32_t alone = chunk_bytes(bulk, left, kNow);
  for (int i = 0; i < 100; ++i) Scheduler::note_small(small, kNow);
  EXPECT_TRUE(Scheduler::yields(bulk, kNow));
  EXPECT_FALSE(Scheduler::yields(small, kNow)) << "not to itself";
  const std::uint32_t beside = chunk_bytes(bulk, left, kNow);
  EXPECT_LT(beside, alone);
  route_.in_memory = true;
  EXPECT_LT(chunk_bytes(bulk, left, kNow), beside) << "in memory each is a copy that the other waits for";
  route_.in_memory = false;
  EXPECT_NE(Scheduler::link_for_chunk(bulk, 0, kLeft, kLeft, kNow), nullptr);
  fill(bulk, 0, 1000);
  EXPECT_EQ(Scheduler::link_for_chunk(bulk, 0, kLeft, kLeft, kNow), nullptr) << "one chunk at a time";
  EXPECT_NE(Scheduler::link_for_chunk(bulk, 0, kLeft, kLeft, kNow + 1'000'000'000), nullptr) << "it has fallen silent";
  Scheduler::note_chunk(small);
  EXPECT_FALSE(Scheduler::yields(bulk, kNow)) << "it moves chunks itself";
}

TEST_F(SchedulerTest, ARemainderRidesAlongRatherThanOnItsOwn) {
  Flow& flow = add_flow();
  const std::uint32_t chunk = link(0).chunk();
  EXPECT_EQ(chunk_bytes(flow, chunk + chunk / 2, 0), chunk + chunk / 2);
  EXPECT_EQ(chunk_bytes(flow, chunk + chunk / 2 + 1, 0), chunk);
  EXPECT_EQ(chunk_bytes(flow, 1, 0), 1U);
  route_.max_write = chunk;
  EXPECT_EQ(chunk_bytes(flow, chunk + 1, 0), chunk) << "no longer than every link can carry";
}

TEST_F(SchedulerTest, AChunkUnderSuspicionHasALinkForItself) {
  Flow& flow = add_flow();
  Operation operation;
  operation.kind = Operation::Kind::write;
  operation.flow = &flow;
  Segment segment;
  segment.operation = &operation;
  for (std::size_t index = 0; index < route_.links.size(); ++index) fill(flow, index, 1000 * (index + 1));
  EXPECT_EQ(Scheduler::link_alone(flow, segment), nullptr) << "others are on it still";
  EXPECT_EQ(link(0).sole, &segment) << "but nothing more is put there";
  EXPECT_NE(Scheduler::link_for_chunk(flow, 0, kLeft, kLeft, 0), &link(0));
  link(0).chunk_dropped(1000);
  EXPECT_EQ(Scheduler::link_alone(flow, segment), &link(0));
  segment.alone = operation.on_trial = true;
  Segment second;
  second.operation = &operation;
  EXPECT_EQ(Scheduler::link_alone(flow, second), nullptr) << "one of an operation's chunks at a time";
  Scheduler::end_alone(segment);
  EXPECT_EQ(link(0).sole, nullptr);
  EXPECT_FALSE(operation.on_trial);
}

}  // namespace
}  // namespace railyard::transport
