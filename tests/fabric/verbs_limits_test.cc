/// Devices with next to nothing: what does not fit is said or waits, and harms nobody who has his place.
#include "fabric/verbs_rails.hpp"

namespace railyard::fabric {
namespace {

using ::testing::HasSubstr;

struct Shortage {
  const char* name;
  std::function<void(verbs_double::Limits&)> cause;
  std::vector<const char*> said;
};

class VerbsShortage : public VerbsRails, public ::testing::WithParamInterface<Shortage> {};

TEST_P(VerbsShortage, OpeningSaysWhatThereIsTooLittleOfAndLeavesNothing) {
  GetParam().cause(network_.options(0).limits);
  auto rail = open_rail(0);
  ASSERT_FALSE(rail.ok());
  for (const char* part : GetParam().said) EXPECT_THAT(rail.error().text(), HasSubstr(part));
  EXPECT_THAT(rail.error().text(), HasSubstr("fake0"));
  EXPECT_THAT(rail.error().text(), HasSubstr("RAILYARD_INTERFACES")) << "no fix is named";
  EXPECT_EQ(network_.alive(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    All, VerbsShortage,
    ::testing::Values(
        Shortage{"pairs", [](auto& limits) { limits.max_qp = 0; }, {"datagram queue pair", "its limit: 0"}},
        Shortage{"queues", [](auto& limits) { limits.max_cq = 0; }, {"completion queue", "its limit: 0"}},
        Shortage{"completions", [](auto& limits) { limits.max_cqe = 100; }, {"100 completions", "least"}},
        Shortage{"shared_queues", [](auto& limits) { limits.max_srq = 0; }, {"shared receive queue", "its limit: 0"}},
        Shortage{"receives", [](auto& limits) { limits.max_srq_wr = 0; }, {"0 shared receives"}},
        Shortage{"work", [](auto& limits) { limits.max_qp_wr = 3; }, {"3 work requests"}},
        Shortage{"domains", [](auto& limits) { limits.max_pd = 0; }, {"protection domain", "its limit: 0"}},
        Shortage{"regions", [](auto& limits) { limits.max_mr = 0; }, {"register memory", "its limit: 0"}}),
    [](const auto& info) { return std::string(info.param.name); });

using VerbsLimits = VerbsRails;

TEST_F(VerbsLimits, ASecondRailThatDoesNotFitLeavesTheFirstAlone) {
  network_.options(0).limits.max_pd = 1;
  network_.options(1).limits.max_cq = 1;
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1, 2});
  ASSERT_TRUE(delivers(a, b, link));
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(open_rail(0).ok());
    EXPECT_FALSE(open_rail(1).ok());
    ASSERT_TRUE(delivers(a, b, link));
  }
}

TEST_F(VerbsLimits, NoFurtherQueuePairIsAnErrorOfThatLinkAlone) {
  network_.options(0).limits.max_qp = 4;  // one of them is for CM messages
  Side& a = open(0);
  Side& b = open(1);
  std::vector<RemoteId> links;
  for (std::uint64_t id = 1; id <= 3; ++id) links.push_back(connect(a, b, {id, 1}));
  for (int round = 0; round < 3; ++round) {
    auto refused = a.rail->connect(b.rail->address(), {9, 1});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().status(), Status::no_memory);
    EXPECT_THAT(refused.error().text(), HasSubstr("queue pair"));
    EXPECT_THAT(refused.error().text(), HasSubstr("its limit: 4"));
    EXPECT_THAT(refused.error().text(), HasSubstr("RAILYARD_SHARED_LINKS"));
    for (const RemoteId link : links) ASSERT_TRUE(delivers(a, b, link));
  }
  a.rail->disconnect(links[0]);
  ASSERT_TRUE(pump([&] { return pairs(0) == 2; }));
  EXPECT_TRUE(delivers(a, b, connect(a, b, {9, 1})));
  EXPECT_EQ(a.seen(Event::Kind::lost), 0u);
}

TEST_F(VerbsLimits, ACalleeWithoutRoomRefusesAndTakesTheLinkLater) {
  network_.options(1).limits.max_qp = 2;
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId first = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, first));
  for (std::uint32_t epoch = 1; epoch < 4; ++epoch) {
    const RemoteId second = connect(a, b, {2, epoch});
    ASSERT_TRUE(pump([&] { return a.lost(second) == epoch; }));  // the number is used again
    EXPECT_EQ(a.find(Event::Kind::lost)->error, verbs::kNoRoom);
    EXPECT_FALSE(a.find(Event::Kind::lost)->refused);
    EXPECT_THAT(a.rail->describe_error(verbs::kNoRoom), HasSubstr("queue pair"));
    a.rail->disconnect(second);
    ASSERT_TRUE(delivers(a, b, first));
  }
  a.rail->disconnect(first);
  ASSERT_TRUE(pairs_become(0));
  EXPECT_TRUE(delivers(a, b, connect(a, b, {2, 4})));
}

TEST_F(VerbsLimits, NoFurtherAddressIsAnErrorOfThatPeerAlone) {
  network_.options(0).limits.max_ah = 1;
  Side& a = open(0);
  Side& b = open(1);
  Side& c = open(2);
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  auto refused = a.rail->connect(c.rail->address(), {2, 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("address handle"));
  EXPECT_THAT(refused.error().text(), HasSubstr("its limit: 1"));
  ASSERT_TRUE(delivers(a, b, link));
  // A call from a peer that cannot be answered: it gives up by itself.
  const RemoteId unheard = connect(c, a, {3, 1});
  ASSERT_TRUE(pump([&] { return c.lost(unheard) == 1; }));
  EXPECT_EQ(c.find(Event::Kind::lost)->error, verbs::kNoAnswer);
  c.rail->disconnect(unheard);
  EXPECT_TRUE(delivers(a, b, link));
  EXPECT_EQ(a.seen(Event::Kind::lost), 0u);
}

TEST_F(VerbsLimits, NoFurtherRegionIsAnErrorOfThatMemoryAlone) {
  network_.options(0).limits.max_mr = 2;  // CM messages, and the side's own
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1});
  std::array<std::byte, 64> more{};
  auto refused = a.rail->register_memory(more, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().status(), Status::no_memory);
  EXPECT_THAT(refused.error().text(), HasSubstr("64 bytes"));
  EXPECT_TRUE(delivers(a, b, link));
}

TEST_F(VerbsLimits, ShortQueuesAreBackPressureOnly) {
  for (std::size_t device : {0u, 1u}) {
    network_.options(device).limits.max_qp_wr = 4;
    network_.options(device).limits.max_srq_wr = 4;
    network_.options(device).limits.max_inline_data = 0;
  }
  Side& a = open(0, 2);
  Side& b = open(1, 4);
  EXPECT_EQ(b.rail->receive(b.fodder(), b.fresh()), Post::busy) << "the shared receive queue holds four";
  std::vector<RemoteId> links;
  for (std::uint64_t id = 1; id <= 4; ++id) links.push_back(connect(a, b, {id, 1}));
  std::vector<PostContext*> posted;
  std::size_t busy = 0;
  while (posted.size() < 2000) {
    for (std::size_t turn = 0; turn < 8 * links.size(); ++turn) {
      const RemoteId link = links[turn % links.size()];
      PostContext* const context = a.fresh();
      const Post answer = posted.size() % 3 == 0 ? a.rail->send(link, a.chunk(0, 48), context)
                                                 : a.rail->write(a.to(link, b, 64), a.chunk(0, 48),
                                                                 {.with_immediate = posted.size() % 3 == 1}, context);
      ASSERT_NE(answer, Post::failed) << a.rail->failure();
      if (answer == Post::posted) posted.push_back(context);
      busy += answer == Post::busy ? 1 : 0;
    }
    for (Side& side : sides_) poll(side);
  }
  EXPECT_GT(busy, 100u);
  expect_back_once(a, posted);
  EXPECT_EQ(a.seen(Event::Kind::failed), 0u);
  EXPECT_EQ(network_.traffic(0).inlined, 0u);
  EXPECT_LE(network_.traffic(0).peak_send_queue, 4u);
}

TEST_F(VerbsLimits, EveryPairMayBreakAtOnceWithoutTheCompletionQueueRunningOver) {
  constexpr int kEntries = 600;
  network_.options(0).limits.max_cqe = kEntries;
  Side& a = open(0, 100);
  Side& b = open(1, 100);
  std::vector<RemoteId> links;
  for (std::uint64_t id = 1; id <= 12; ++id) links.push_back(connect(a, b, {id, 1}));
  for (const RemoteId link : links) ASSERT_TRUE(delivers(a, b, link));
  network_.freeze(0);
  std::vector<PostContext*> posted;
  for (const RemoteId link : links) {
    const auto some = fill(a, b, link);
    posted.insert(posted.end(), some.begin(), some.end());
  }
  EXPECT_GT(posted.size(), 200u);
  for (const RemoteId link : links) {
    PostContext* const context = a.fresh();
    EXPECT_EQ(a.rail->send(link, a.chunk(0, 8), context), Post::busy);
  }
  // Queue pairs are numbered from 0x100, the first is for CM messages.
  for (std::uint32_t number = 1; number <= links.size(); ++number) network_.break_pair(0, 0x100 + number);
  network_.thaw(0);
  expect_back_once(a, posted);
  for (const RemoteId link : links) EXPECT_EQ(a.lost(link), 1u);
  EXPECT_LE(network_.traffic(0).peak_completions, static_cast<std::uint32_t>(kEntries));
  // There is as much room as before.
  for (const RemoteId link : links) a.rail->disconnect(link);
  ASSERT_TRUE(pairs_become(0));
  const RemoteId again = connect(a, b, {1, 2});
  ASSERT_TRUE(delivers(a, b, again));
  network_.freeze(0);
  EXPECT_GT(fill(a, b, again).size(), 200u);
  network_.thaw(0);
}

/// Places are granted to a link ahead of its posts: nobody waits for those that it does not use.
TEST_F(VerbsLimits, AllRoomIsForWhoeverPosts) {
  constexpr int kEntries = 600;
  constexpr std::size_t kRoom = 600 - 150 - 160 - 16;  // without receives, CM messages and flushes
  network_.options(0).limits.max_cqe = kEntries;
  Side& a = open(0, 100);
  Side& b = open(1, 100);
  std::vector<RemoteId> links;
  for (std::uint64_t id = 1; id <= 4; ++id) links.push_back(connect(a, b, {id, 1}));
  for (int round = 0; round < 3; ++round) {
    for (const RemoteId link : links) ASSERT_TRUE(delivers(a, b, link));
    network_.freeze(0);
    auto posted = fill(a, b, links[0]);
    const auto more = fill(a, b, links[1]);
    posted.insert(posted.end(), more.begin(), more.end());
    EXPECT_EQ(posted.size(), kRoom);
    for (const RemoteId link : links) EXPECT_EQ(a.rail->send(link, a.chunk(0, 8), a.fresh()), Post::busy);
    network_.thaw(0);
    expect_back_once(a, posted);
    a.log.clear();
  }
}

TEST_F(VerbsLimits, AQueueFullOfReceivesAndWorkDoesNotRunOver) {
  constexpr int kEntries = 400;  // 100 receives, 160 for CM messages, 140 work requests
  for (std::size_t device : {0u, 1u}) network_.options(device).limits.max_cqe = kEntries;
  Side& a = open(0, 100);
  Side& b = open(1, 100);
  const RemoteId there = connect(a, b, {1, 1, 2});
  const RemoteId back = connect(b, a, {2, 1, 1});
  ASSERT_TRUE(delivers(a, b, there) && delivers(b, a, back));
  std::vector<PostContext*> posted;
  // Nobody polls: both queues fill with what was sent and what arrived.
  for (int i = 0; i < 1000; ++i) {
    for (const bool forth : {true, false}) {
      Side& from = forth ? a : b;
      Side& to = forth ? b : a;
      PostContext* const context = from.fresh();
      if (from.rail->write(from.to(forth ? there : back, to, 0), from.chunk(0, 8), {.with_immediate = true}, context) ==
              Post::posted &&
          forth)
        posted.push_back(context);
      from.rail->ring();
    }
  }
  network_.break_pair(0, 0x101);
  expect_back_once(a, posted);
  EXPECT_THAT(network_.violations(), ::testing::IsEmpty());
  EXPECT_EQ(a.seen(Event::Kind::rail_down), 0u);
}

TEST_F(VerbsLimits, LinksAreNumberedAgain) {
  Side& a = open(0);
  Side& b = open(1);
  for (std::uint32_t epoch = 1; epoch < 100; ++epoch) {
    const RemoteId link = connect(a, b, {1, epoch});
    EXPECT_LT(link, 2u);
    ASSERT_TRUE(delivers(a, b, link));
    a.rail->disconnect(link);
    a.log.clear();
    b.log.clear();
  }
  EXPECT_TRUE(pairs_become(0));
}

TEST_F(VerbsLimits, APostThatTheDeviceDoesNotTakeBreaksItsLinkAlone) {
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId one = connect(a, b, {1, 1});
  const RemoteId other = connect(a, b, {2, 1});
  ASSERT_TRUE(delivers(a, b, one) && delivers(a, b, other));
  network_.fail_call("post_send", 1, ENOMEM);
  const auto posted = fill(a, b, one, 10);
  expect_back_once(a, posted);
  EXPECT_EQ(a.lost(one), 1u);
  EXPECT_THAT(a.rail->describe_error(a.find(Event::Kind::lost)->error), HasSubstr("memory"));
  EXPECT_TRUE(delivers(a, b, other));
}

}  // namespace
}  // namespace railyard::fabric
