/// Ports that go and come, queue pairs that break, devices that die, and packets that turn up late.
#include "fabric/verbs_rails.hpp"

namespace railyard::fabric {
namespace {

using VerbsGhosts = VerbsRails;

/// Promise 3: the network still holds what a link sent when that link is given up.
TEST_F(VerbsGhosts, NothingOfAnOldEpochLandsAfterItsFence) {
  network_.retry_time(std::chrono::milliseconds(2));
  Side& a = open(0);
  Side& b = open(1);
  for (std::uint32_t epoch = 1; epoch < 10; ++epoch) {
    const RemoteId link = connect(a, b, {1, epoch, 2});
    ASSERT_TRUE(delivers(a, b, link));
    std::ranges::fill(b.memory, std::byte{0});
    network_.keep_packets(0);
    std::fill_n(a.memory.begin(), 512, static_cast<std::byte>(epoch));
    std::vector<PostContext*> posted;
    for (int i = 0; i < 8; ++i) {
      posted.push_back(a.fresh());
      ASSERT_EQ(a.rail->write(a.to(link, b, 0), a.chunk(0, 512), {.with_immediate = i % 2 == 0}, posted.back()),
                Post::posted);
    }
    if (epoch % 3 == 0) a.rail->disconnect(link);
    ASSERT_TRUE(pump([&] { return epoch % 3 == 0 || a.lost(link) > 0; }));
    ASSERT_TRUE(fenced(b, {1, epoch, 2}));
    const std::size_t landed = b.seen(Event::Kind::landed);
    network_.release_packets(0);
    expect_back_once(a, posted);
    EXPECT_EQ(b.seen(Event::Kind::landed), landed) << "an event came late";
    EXPECT_EQ(b.memory[100], std::byte{0}) << "a ghost wrote";
    a.rail->disconnect(link);
    a.log.clear();
  }
}

/// The double's ghosts are real: without the fence they land.
TEST_F(VerbsGhosts, WithoutAFenceTheyWouldLand) {
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId link = connect(a, b, {1, 1});
  ASSERT_TRUE(delivers(a, b, link));
  network_.keep_packets(0);
  network_.lose_datagrams(0, 1000);
  std::fill_n(a.memory.begin(), 8, std::byte{7});
  const auto posted = fill(a, b, link, 1);
  ASSERT_TRUE(pump([&] { return a.lost(link) == 1; }));
  network_.release_packets(0);
  EXPECT_EQ(b.memory[0], std::byte{7});
}

class VerbsHealth : public VerbsRails {
 protected:
  /// Queue pairs are numbered from 0x100 on each device; CM messages have the first.
  std::uint32_t newest_pair(std::size_t device) const {
    return 0x100 + static_cast<std::uint32_t>(network_.count(device, Device::connected_pair).created);
  }
};

TEST_F(VerbsHealth, APortThatGoesAndComesIsToldOnce) {
  network_.options(0).ports = 2;
  Side& a = open(0);
  for (std::size_t round = 1; round < 4; ++round) {
    for (int again = 0; again < 2; ++again) {
      network_.port_down(0, 1);
      pump_for(std::chrono::milliseconds(3));
    }
    EXPECT_EQ(a.seen(Event::Kind::rail_down), round);
    EXPECT_EQ(a.seen(Event::Kind::rail_up), round - 1);
    for (int again = 0; again < 2; ++again) {
      network_.port_up(0, 1);
      pump_for(std::chrono::milliseconds(3));
    }
    EXPECT_EQ(a.seen(Event::Kind::rail_up), round);
    network_.port_down(0, 2);
    network_.port_up(0, 2);
    pump_for(std::chrono::milliseconds(3));
  }
  EXPECT_EQ(a.seen(Event::Kind::rail_down), 3u) << "the other port is no business of this rail's";
}

TEST_F(VerbsHealth, ADeadDeviceLosesEveryLinkOnceAndGivesEverythingBack) {
  Side& a = open(0);
  Side& b = open(1);
  std::vector<RemoteId> links;
  std::vector<PostContext*> posted;
  for (std::uint64_t id = 1; id <= 5; ++id) {
    links.push_back(connect(a, b, {id, 1, id + 100}));
    ASSERT_TRUE(delivers(a, b, links.back()));
  }
  const RemoteId back = connect(b, a, {101, 1, 1});
  ASSERT_TRUE(delivers(b, a, back));
  links.push_back(connect(a, b, {6, 1}));  // still calling
  network_.freeze(0);
  for (std::size_t i = 0; i < 5; ++i) {
    const auto some = fill(a, b, links[i], 20);
    posted.insert(posted.end(), some.begin(), some.end());
  }
  posted.push_back(a.fresh());
  ASSERT_EQ(a.rail->send(links[0], a.chunk(0, 8), posted.back()), Post::posted);  // its doorbell is not rung
  network_.kill(0);
  ASSERT_TRUE(pump([&] { return a.seen(Event::Kind::rail_down) == 1; }));
  expect_back_once(a, posted);
  for (const RemoteId link : links) {
    EXPECT_EQ(a.lost(link), 1u);
    PostContext* const context = a.fresh();
    EXPECT_EQ(a.rail->send(link, a.chunk(0, 8), context), Post::failed);
    EXPECT_THAT(a.rail->failure(), ::testing::HasSubstr("gone"));
    a.rail->disconnect(link);
  }
  EXPECT_EQ(a.seen(Event::Kind::rail_down), 1u);
  EXPECT_EQ(network_.count(0, Device::context).alive, 0u) << "the device's driver waits for its last user";
  EXPECT_FALSE(a.rail->connect(b.rail->address(), {7, 1}).ok());
  EXPECT_FALSE(a.rail->register_memory(a.memory, {}).ok());
  EXPECT_TRUE(a.rail->fence({101, 1, 1}));
  // The peer finds out by itself.
  (void)fill(b, a, back, 5);
  EXPECT_TRUE(pump([&] { return b.lost(back) == 1; }));
  b.rail->disconnect(back);
  EXPECT_TRUE(pairs_become(0));
}

TEST_F(VerbsHealth, ACompletionQueueThatFailsWhileAPairGoesIsADeadDevice) {
  for (unsigned nth = 1; nth < 12; ++nth) {
    Side& a = open(0);
    Side& b = open(1);
    const RemoteId link = connect(a, b, {1, 1});
    ASSERT_TRUE(delivers(a, b, link));
    a.rail->disconnect(link);
    network_.fail_call("poll_cq", nth, EIO);
    pump_for(std::chrono::milliseconds(5));
    EXPECT_EQ(a.seen(Event::Kind::rail_down) + b.seen(Event::Kind::rail_down), 1u);
    close(a);
    close(b);
  }
}

TEST_F(VerbsHealth, ABrokenPairLosesBothItsLinksOnce) {
  Side& a = open(0);
  Side& b = open(1);
  const RemoteId other = connect(a, b, {3, 1});
  ASSERT_TRUE(delivers(a, b, other));
  for (std::uint32_t epoch = 1; epoch < 4; ++epoch) {
    const RemoteId there = connect(a, b, {1, epoch, 2});
    const RemoteId back = connect(b, a, {2, epoch, 1});
    ASSERT_TRUE(delivers(a, b, there) && delivers(b, a, back));
    network_.break_pair(epoch % 2, newest_pair(epoch % 2));
    ASSERT_TRUE(pump([&] { return a.lost(there) == 1 && b.lost(back) == 1; }));
    pump_for(std::chrono::milliseconds(5));
    EXPECT_EQ(a.seen(Event::Kind::lost) + b.seen(Event::Kind::lost), 2u);
    EXPECT_TRUE(delivers(a, b, other));
    a.rail->disconnect(there);
    b.rail->disconnect(back);
    a.log.clear();
    b.log.clear();
  }
}

TEST_F(VerbsHealth, AnEventOfAPairThatGoesIsNotActedOn) {
  // Every pair that goes tells that it takes no more receives; new ones take its place at once.
  Side& a = open(0);
  Side& b = open(1);
  for (std::uint32_t epoch = 1; epoch < 200; ++epoch) {
    const RemoteId link = connect(a, b, {1, epoch});
    ASSERT_TRUE(delivers(a, b, link)) << epoch;
    network_.break_pair(1, newest_pair(1));
    if (epoch % 2 == 0) a.rail->disconnect(link);
    ASSERT_TRUE(pump([&] { return epoch % 2 == 0 || a.lost(link) > 0; }));
    if (epoch % 2 == 1) a.rail->disconnect(link);
    a.log.clear();
  }
  EXPECT_TRUE(pairs_become(0));
  EXPECT_LT(network_.count(Device::connected_pair).peak, 8u);
}

}  // namespace
}  // namespace railyard::fabric
