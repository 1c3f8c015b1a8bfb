/// When a refused connection proves that a process is gone.
#include "fabric/refusals.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "fabric/verbs/liveness_port.hpp"

namespace railyard::fabric {
namespace {

TEST(Refusals, OnlyThoseInARowSomeTimeApartOfAPeerThatWasReachedAreBelieved) {
  Refusals<std::string> refusals;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(refusals.refused("never reached", i * kRefusalPause));
  refusals.stood("peer");
  EXPECT_TRUE(refusals.reached("peer"));
  EXPECT_FALSE(refusals.reached("never reached"));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(refusals.refused("peer", 1000 + i)) << "all at one moment";
  EXPECT_FALSE(refusals.refused("peer", 2 * kRefusalPause));
  EXPECT_TRUE(refusals.refused("peer", 3 * kRefusalPause));
  refusals.stood("peer");
  EXPECT_FALSE(refusals.refused("peer", 4 * kRefusalPause)) << "it was reached in between";
}

const std::uint32_t kLoopback = ::inet_addr("127.0.0.1");

std::uint16_t port_that_was_open() {
  auto opened = verbs::LivenessPort::open(kLoopback, *PortRange::parse(""));
  EXPECT_TRUE(opened.ok());
  return opened->port();
}

TEST(LivenessProbe, RefusalsAreBelievedWhenTheyAreRepeated) {
  verbs::LivenessProbe probe(kLoopback, port_that_was_open());
  const std::int64_t begin = SteadyClock().now();
  EXPECT_NE(probe.liveness(), Liveness::gone) << "one is no proof";
  EXPECT_TRUE(probe.open());
  while (!probe.refused()) std::this_thread::yield();
  EXPECT_GE(SteadyClock().now() - begin, 2 * kRefusalPause);
  EXPECT_EQ(probe.liveness(), Liveness::gone);
  EXPECT_FALSE(probe.open());
}

/// A pass of a rail is no longer than that, however many connect.
TEST(LivenessPort, ASweepLetsGoOfABoundedNumberAndTheNextGoesOn) {
  auto opened = verbs::LivenessPort::open(kLoopback, *PortRange::parse(""));
  ASSERT_TRUE(opened.ok());
  constexpr int kConnections = verbs::LivenessPort::kMostPerSweep + 8;
  std::deque<verbs::LivenessProbe> probes;
  for (int i = 0; i < kConnections; ++i) {
    verbs::LivenessProbe& probe = probes.emplace_back(kLoopback, opened->port());
    while (probe.liveness() != Liveness::alive) ASSERT_TRUE(probe.open());
  }
  const auto held = [&] {
    return std::ranges::count_if(probes, [](verbs::LivenessProbe& probe) {
      (void)probe.liveness();
      return probe.open();  // not after it was let go of
    });
  };
  EXPECT_EQ(held(), kConnections);
  opened->sweep();
  EXPECT_EQ(held(), kConnections - verbs::LivenessPort::kMostPerSweep);
  opened->sweep();
  EXPECT_EQ(held(), 0);
}

TEST(LivenessProbe, WhoAnswersAfterARefusalIsAlive) {
  const std::uint16_t port = port_that_was_open();
  verbs::LivenessProbe probe(kLoopback, port);
  EXPECT_NE(probe.liveness(), Liveness::gone);
  const auto opened =
      verbs::LivenessPort::open(kLoopback, *PortRange::parse(std::to_string(port) + "-" + std::to_string(port)));
  if (!opened.ok()) GTEST_SKIP() << "somebody else took the port";
  Liveness answer = Liveness::unknown;
  while (answer == Liveness::unknown) answer = probe.liveness();
  EXPECT_EQ(answer, Liveness::alive);
}

}  // namespace
}  // namespace railyard::fabric
