/// Worlds that join an engine and leave it: their ids, their routes, and ranks that speak too late.
#include <gtest/gtest.h>

#include "failover_fixture.hpp"

namespace railyard::transport {
namespace {

constexpr std::size_t kMostFlows = 4;

class WorldsTest : public ::testing::Test {
 protected:
  WorldsTest() {
    EngineParts parts;
    parts.clock = &clock_;
    parts.size = 0;
    parts.most_flows = kMostFlows;
    parts.identity.bytes[0] = 1;
    auto rail = std::make_unique<ScriptRail>();
    rail_ = rail.get();
    parts.rails.push_back(std::move(rail));
    auto engine = Engine::open(std::move(parts));
    EXPECT_TRUE(engine) << engine.error().text();
    engine_ = std::move(*engine);
  }

  /// As rank 0 of two.
  const Ranks* join(std::uint64_t instance) {
    auto first = engine_->peers().flows().reserve(2);
    EXPECT_TRUE(first) << first.error().text();
    return engine_->join({.own = 0, .size = 2, .instance = instance, .first_flow = *first, .find = [](int) {
                            static const std::array<std::byte, 1> kAddress{};
                            PeerAddress peer;
                            peer.identity.bytes[0] = 2;
                            peer.rails.push_back({"script", kAddress});
                            return Result<PeerAddress>(std::move(peer));
                          }});
  }
  void leave(const Ranks* world) {
    const ProgressGuard hold(engine_->progress_lock());
    engine_->leave(*world);
  }
  void pass(int milliseconds) {
    for (int i = 0; i < milliseconds; ++i) {
      clock_.time += kMillisecond;
      engine_->progress();
    }
  }
  /// From the world's rank 1: a signal, or a notice.
  std::vector<std::byte> frame(std::uint16_t flow, std::uint64_t session, const wire::RecordHeader& record,
                               wire::FrameKind kind = wire::FrameKind::notice) {
    std::vector<std::byte> bytes(wire::kFrameBytes);
    std::uint32_t used = wire::kRecordsAt;
    std::memset(wire::FrameWriter::append(bytes.data(), used, record), 0, record.length);
    const wire::FrameHeader header{
        .kind = kind, .flow = flow, .records = 1, .session = session, .limit = kFirstGrant, .bytes = used};
    std::memcpy(bytes.data(), &header, sizeof header);
    bytes.resize(used);
    return bytes;
  }
  std::size_t goodbyes() const { return rail_->notices(wire::RecordKind::leave).size(); }

  StillClock clock_;
  ScriptRail* rail_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

TEST_F(WorldsTest, IdsAreFreeWhenTheLastFlowHasGone) {
  const Ranks* const one = join(1);
  const Ranks* const two = join(2);
  EXPECT_EQ(one->first_flow, 0);
  EXPECT_EQ(two->first_flow, 2);
  const auto full = engine_->peers().flows().reserve(1);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.status(), Status::no_memory) << full.error().text();
  Flow* const flow = *engine_->peers().flow(one->flow_of(1));
  EXPECT_EQ(flow->route->world, one);
  EXPECT_EQ(flow->peer, 1);
  EXPECT_NE(flow->session_in, (*engine_->peers().flow(two->flow_of(1)))->session_in) << "the same two processes";
  leave(one);
  pass(3);
  EXPECT_EQ(engine_->peers().registry().size(), 1U);
  EXPECT_EQ(engine_->peers().worlds().size(), 1U);
  const Ranks* const three = join(3);
  EXPECT_EQ(three->first_flow, 0);
  leave(two);
  leave(three);
  pass(3);
  // Two of two are four together.
  EXPECT_TRUE(engine_->peers().flows().reserve(4));
}

TEST_F(WorldsTest, WhoSpeaksTooLateIsToldOnce) {
  const Ranks* const world = join(1);
  const std::uint64_t session = (*engine_->peers().flow(1))->session_in;
  leave(world);
  pass(3);
  ASSERT_EQ(engine_->peers().registry().size(), 0U);
  const std::size_t before = goodbyes();
  rail_->deliver(frame(1, session, wire::Signal{7, 0}.header(), wire::FrameKind::sequenced));
  pass(2);
  EXPECT_EQ(goodbyes(), before + 1);
  EXPECT_EQ(engine_->peers().registry().size(), 1U);
  pass(1);
  EXPECT_EQ(goodbyes(), before + 1) << "not in every pass";
  rail_->deliver(frame(1, session, wire::Leave{.answer = true}.header()));
  pass(3);
  EXPECT_EQ(engine_->peers().registry().size(), 0U) << "it has been heard";
  rail_->deliver(frame(3, session, wire::Signal{7, 0}.header(), wire::FrameKind::sequenced));
  pass(2);
  EXPECT_EQ(engine_->peers().registry().size(), 0U) << "no world had that id";
}

TEST_F(WorldsTest, ARankThatDoesNotAnswerIsNotWaitedForLong) {
  const Ranks* const world = join(1);
  const std::uint64_t session = (*engine_->peers().flow(1))->session_in;
  leave(world);
  pass(3);
  rail_->deliver(frame(1, session, wire::Signal{7, 0}.header(), wire::FrameKind::sequenced));
  pass(500);
  EXPECT_EQ(engine_->peers().registry().size(), 1U);
  EXPECT_GT(goodbyes(), 2U) << "said again and again";
  pass(800);
  EXPECT_EQ(engine_->peers().registry().size(), 0U);
}

TEST_F(WorldsTest, AWorldWithTheIdsOfOneThatLeftIsNotTakenForIt) {
  const Ranks* const first = join(1);
  const Ranks* const other = join(2);
  const std::uint64_t session = (*engine_->peers().flow(1))->session_in;
  leave(first);
  pass(3);
  rail_->deliver(frame(1, session, wire::Signal{7, 0}.header(), wire::FrameKind::sequenced));
  pass(1);
  const Flow* const late = engine_->peers().existing(1);
  ASSERT_NE(late, nullptr);
  const Ranks* const next = join(3);
  EXPECT_EQ(next->first_flow, 0);
  EXPECT_EQ(engine_->peers().existing(1), nullptr) << "of a world that has left";
  Flow* const flow = *engine_->peers().flow(next->flow_of(1));
  EXPECT_EQ(flow->route->world, next);
  EXPECT_NE(flow->session_in, session);
  pass(3);
  EXPECT_EQ(engine_->peers().existing(1), flow);
  EXPECT_EQ(engine_->peers().registry().size(), 1U);
  leave(next);
  leave(other);
}

TEST_F(WorldsTest, ALossIsOfTheWorldThatHadIt) {
  const Ranks* const world = join(1);
  engine_->begin_shut_out(**engine_->peers().flow(1), "the test says so");
  pass(3);
  EXPECT_EQ(engine_->losses().last(), 1);
  leave(world);
  EXPECT_EQ(engine_->losses().last(), -1);
}

}  // namespace
}  // namespace railyard::transport
