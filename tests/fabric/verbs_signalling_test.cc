/// How work requests are handed over and told of: chains, doorbells, inline bytes, and completions that come too late.
#include "fabric/verbs_rails.hpp"

namespace railyard::fabric {
namespace {

class VerbsSignals : public VerbsRails {
 protected:
  void SetUp() override {
    a_ = &open(0);
    b_ = &open(1);
    link_ = connect(*a_, *b_, {1, 1});
    ASSERT_TRUE(delivers(*a_, *b_, link_));
  }
  Post write(std::size_t bytes, PostContext* context) {
    return a_->rail->write(a_->to(link_, *b_, 0), a_->chunk(0, bytes), {}, context);
  }

  Side* a_ = nullptr;
  Side* b_ = nullptr;
  RemoteId link_ = 0;
};

TEST_F(VerbsSignals, ABurstIsAFewDoorbellsAndAFewCompletions) {
  const auto before = network_.traffic(0);
  std::vector<PostContext*> posted;
  for (int i = 0; i < 200; ++i) {
    posted.push_back(a_->fresh());
    ASSERT_EQ(write(8, posted.back()), Post::posted);
  }
  a_->rail->ring();
  const auto after = network_.traffic(0);  // no poll: no CM message is among it
  expect_back_once(*a_, posted);
  EXPECT_EQ(after.work_requests - before.work_requests, 200u);
  EXPECT_EQ(after.doorbells - before.doorbells, 13u) << "200 in chains of 16";
  EXPECT_LE(after.signalled - before.signalled, 13u + 200 / 64);
  for (const PostContext* context : posted) {
    const auto event = std::ranges::find(a_->log, context, &Event::context);
    EXPECT_EQ(event->kind, Event::Kind::written);
  }
}

TEST_F(VerbsSignals, TheLastOfEachDoorbellIsSignalledAndSpeaksForTheRest) {
  for (std::size_t burst = 1; burst <= 40; ++burst) {
    std::vector<PostContext*> posted;
    for (std::size_t i = 0; i < burst; ++i) {
      posted.push_back(a_->fresh());
      ASSERT_EQ(
          i % 2 == 0 ? write(8, posted.back()) : a_->rail->read(a_->to(link_, *b_, 0), a_->chunk(64, 8), posted.back()),
          Post::posted);
    }
    expect_back_once(*a_, posted);
    // In the order in which they were posted, each as what it was.
    auto next = std::ranges::find(a_->log, posted[0], &Event::context);
    for (std::size_t i = 0; i < burst; ++i, ++next) {
      ASSERT_EQ(next->context, posted[i]);
      ASSERT_EQ(next->kind, i % 2 == 0 ? Event::Kind::written : Event::Kind::read);
    }
  }
}

TEST_F(VerbsSignals, AWorkRequestAloneLeavesWithTheNextPoll) {
  const auto before = network_.traffic(0);
  PostContext* const context = a_->fresh();
  ASSERT_EQ(write(8, context), Post::posted);
  EXPECT_EQ(network_.traffic(0).doorbells, before.doorbells);
  poll(*a_);
  EXPECT_EQ(network_.traffic(0).doorbells, before.doorbells + 1);
  ASSERT_TRUE(pump([&] { return a_->told(context) == 1; }));
}

TEST_F(VerbsSignals, AFullChainLeavesWithoutADoorbell) {
  const auto before = network_.traffic(0);
  for (int i = 0; i < 17; ++i) ASSERT_EQ(write(8, a_->fresh()), Post::posted);
  EXPECT_EQ(network_.traffic(0).doorbells, before.doorbells + 1);
  EXPECT_EQ(network_.traffic(0).work_requests, before.work_requests + 16);
}

TEST_F(VerbsSignals, PostsToLinksInTurnAreOneChainEach) {
  constexpr std::size_t kLinks = 3;
  std::vector<RemoteId> links{link_};
  while (links.size() < kLinks) links.push_back(connect(*a_, *b_, {links.size() + 1, 1}));
  for (const RemoteId link : links) ASSERT_TRUE(delivers(*a_, *b_, link));
  for (std::size_t burst = 1; burst <= 40; ++burst) {
    const auto before = network_.traffic(0);
    std::vector<PostContext*> posted;
    for (std::size_t i = 0; i < burst; ++i) {
      posted.push_back(a_->fresh());
      ASSERT_EQ(a_->rail->write(a_->to(links[i % kLinks], *b_, 0), a_->chunk(0, 8), {}, posted.back()), Post::posted);
    }
    EXPECT_EQ(network_.traffic(0).doorbells, before.doorbells);
    a_->rail->ring();
    EXPECT_EQ(network_.traffic(0).doorbells, before.doorbells + std::min(burst, kLinks));
    EXPECT_EQ(network_.traffic(0).work_requests, before.work_requests + burst);
    a_->rail->ring();
    EXPECT_EQ(network_.traffic(0).doorbells, before.doorbells + std::min(burst, kLinks)) << "nothing is left to ring";
    expect_back_once(*a_, posted);
    a_->log.clear();
  }
}

/// A link that another takes the place of, with its chain not rung.
TEST_F(VerbsSignals, NothingIsPostedForALinkThatHasEnded) {
  const RemoteId other = connect(*a_, *b_, {2, 1});
  ASSERT_TRUE(delivers(*a_, *b_, other));
  std::vector<PostContext*> posted;
  for (const RemoteId link : {link_, other, link_}) {
    posted.push_back(a_->fresh());
    ASSERT_EQ(a_->rail->write(a_->to(link, *b_, 0), a_->chunk(0, 8), {}, posted.back()), Post::posted);
  }
  a_->rail->disconnect(link_);
  EXPECT_EQ(write(8, a_->fresh()), Post::failed);
  a_->rail->ring();
  expect_back_once(*a_, posted);
  EXPECT_EQ(std::ranges::find(a_->log, posted[0], &Event::context)->kind, Event::Kind::failed);
  EXPECT_EQ(std::ranges::find(a_->log, posted[1], &Event::context)->kind, Event::Kind::written);
  EXPECT_EQ(std::ranges::find(a_->log, posted[2], &Event::context)->kind, Event::Kind::failed);
  const RemoteId again = connect(*a_, *b_, {3, 1});
  EXPECT_EQ(again, link_);
  EXPECT_TRUE(delivers(*a_, *b_, again));
}

TEST_F(VerbsSignals, SmallOnesGoInlineUpToWhatTheDeviceCarries) {
  const auto inlined = [&](std::size_t bytes) {
    const auto before = network_.traffic(0).inlined;
    PostContext* const context = a_->fresh();
    EXPECT_EQ(write(bytes, context), Post::posted);
    EXPECT_TRUE(pump([&] { return a_->told(context) == 1; }));
    return network_.traffic(0).inlined - before;
  };
  EXPECT_EQ(inlined(1), 1u);
  EXPECT_EQ(inlined(220), 1u);
  EXPECT_EQ(inlined(221), 0u);
}

TEST_F(VerbsSignals, ADeviceThatCarriesLessInlineIsFoundOut) {
  for (const std::uint32_t most : {100u, 64u, 8u, 0u}) {
    network_.options(2).limits.max_inline_data = most;
    Side& c = open(2);
    const RemoteId link = connect(c, *b_, {most + 10, 1});
    ASSERT_TRUE(delivers(c, *b_, link));
    std::vector<PostContext*> posted;
    for (std::size_t bytes : {1u, 8u, 50u, 64u, 100u, 101u, 220u}) {
      posted.push_back(c.fresh());
      ASSERT_EQ(c.rail->write(c.to(link, *b_, 0), c.chunk(0, bytes), {}, posted.back()), Post::posted);
    }
    expect_back_once(c, posted);
    EXPECT_EQ(c.seen(Event::Kind::failed), 0u);
    close(c);
  }
}

TEST_F(VerbsSignals, AFailureInAChainFailsItAndWhatFollows) {
  std::vector<PostContext*> posted;
  for (int i = 0; i < 12; ++i) {
    posted.push_back(a_->fresh());
    RemoteChunk to = a_->to(link_, *b_, 0);
    if (i == 5) to.key ^= 0x100;
    ASSERT_EQ(a_->rail->write(to, a_->chunk(0, 8), {}, posted.back()), Post::posted);
  }
  expect_back_once(*a_, posted);
  for (int i = 0; i < 12; ++i) {
    const auto event = std::ranges::find(a_->log, posted[static_cast<std::size_t>(i)], &Event::context);
    EXPECT_EQ(event->kind, i < 5 ? Event::Kind::written : Event::Kind::failed) << i;
  }
  EXPECT_EQ(a_->lost(link_), 1u);
}

/// Completions of a pair that is no more, of devices that keep them and devices that do not.
class VerbsStale : public VerbsRails, public ::testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(Devices, VerbsStale, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "removes" : "keeps"); });

TEST_P(VerbsStale, CompletionsOfAnEndedPairAreNotAnothers) {
  for (std::size_t device : {0u, 1u}) network_.options(device).removes_completions = GetParam();
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId other = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, other));
  for (std::uint32_t epoch = 1; epoch < 60; ++epoch) {
    RemoteId link = connect(a, b, {2, epoch});
    ASSERT_TRUE(delivers(a, b, link));
    network_.hold_completions(0, true);
    const auto old = fill(a, b, link, 1 + epoch % 40);
    const auto others = fill(a, b, other, 3);
    a.rail->disconnect(link);
    network_.hold_completions(0, false);
    link = connect(a, b, {3, epoch});
    const auto fresh = fill(a, b, link, 1);
    ASSERT_TRUE(delivers(a, b, link));
    expect_back_once(a, old);
    expect_back_once(a, others);
    expect_back_once(a, fresh);
    for (const PostContext* context : others)
      EXPECT_EQ(std::ranges::find(a.log, context, &Event::context)->kind, Event::Kind::written);
    a.rail->disconnect(link);
    a.log.clear();
  }
  a.rail->disconnect(other);
  EXPECT_TRUE(pairs_become(0));
}

TEST_P(VerbsStale, ReceivesTakenByAPairThatBrokeComeOut) {
  for (std::size_t device : {0u, 1u}) network_.options(device).removes_completions = GetParam();
  network_.options(1).limits.max_srq_wr = 16;
  Side& a = open(0);
  Side& b = open(1, 0);
  for (std::uint32_t epoch = 1; epoch < 40; ++epoch) {
    const RemoteId link = connect(a, b, {1, epoch});
    std::vector<PostContext> receives(16);
    for (PostContext& context : receives) ASSERT_EQ(b.rail->receive(b.fodder(), &context), Post::posted) << epoch;
    std::vector<PostContext*> sends;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      sends.push_back(a.fresh());
      Post answer = Post::busy;
      ASSERT_TRUE(pump([&] { return (answer = a.rail->send(link, a.chunk(0, 8), sends.back())) != Post::busy; }));
      ASSERT_EQ(answer, Post::posted);
    }
    a.rail->ring();
    ASSERT_TRUE(fenced(b, {1, epoch}));
    expect_back_once(a, sends);
    std::vector<PostContext*> taken;
    for (PostContext& context : receives) taken.push_back(&context);
    expect_back_once(b, taken);
    a.rail->disconnect(link);
    a.log.clear();
    b.log.clear();
  }
}

}  // namespace
}  // namespace railyard::fabric
