/// A liveness port and those who connect to it.
#include "fabric/verbs/liveness_port.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "fabric/refusals.hpp"
#include "fabric/verbs/host_addresses.hpp"
#include "fabric/verbs/port.hpp"

namespace railyard::fabric::verbs {
namespace {

const Secret kKey{std::byte{7}};
const Secret kOtherKey{std::byte{8}};

ibv_gid address_of(const char* text) {
  ibv_gid gid{};
  EXPECT_EQ(::inet_pton(AF_INET6, text, gid.raw), 1) << text;
  return gid;
}
LivenessEndpoint loopback(std::uint16_t port = 0) { return {address_of("::ffff:127.0.0.1"), port, 0}; }

LivenessPort open_port(const Secret& key = kKey, const std::string& ports = "") {
  auto opened = LivenessPort::open(loopback(), *PortRange::parse(ports), key);
  EXPECT_TRUE(opened.ok()) << opened.error().text();
  return opened ? std::move(*opened) : LivenessPort();
}
std::uint16_t port_that_was_open() { return open_port().port(); }

/// A connection that does not say anything.
Fd silent_connection(std::uint16_t port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return socket;
}

TEST(LivenessProbe, RefusalsAreBelievedWhenTheyAreRepeated) {
  LivenessProbe probe(loopback(port_that_was_open()), kKey);
  const std::int64_t begin = SteadyClock().now();
  EXPECT_NE(probe.liveness(), Liveness::gone) << "one is no proof";
  EXPECT_TRUE(probe.open());
  while (!probe.refused()) std::this_thread::yield();
  EXPECT_GE(SteadyClock().now() - begin, 2 * kRefusalPause);
  EXPECT_EQ(probe.liveness(), Liveness::gone);
  EXPECT_FALSE(probe.open());
}

TEST(LivenessProbe, WhoAnswersAfterARefusalIsAlive) {
  const std::uint16_t port = port_that_was_open();
  LivenessProbe probe(loopback(port), kKey);
  EXPECT_NE(probe.liveness(), Liveness::gone);
  const auto opened =
      LivenessPort::open(loopback(), *PortRange::parse(std::to_string(port) + "-" + std::to_string(port)), kKey);
  if (!opened.ok()) GTEST_SKIP() << "somebody else took the port";
  Liveness answer = Liveness::unknown;
  while (answer == Liveness::unknown) answer = probe.liveness();
  EXPECT_EQ(answer, Liveness::alive);
}

TEST(LivenessProbe, AProcessThatComesToItProvesItsSecret) {
  LivenessPort port = open_port();
  LivenessProbe probe(loopback(port.port()), kKey);
  while (!probe.proven()) {
    ASSERT_NE(probe.liveness(), Liveness::gone);
    port.sweep();
  }
  EXPECT_FALSE(probe.open());
}

/// The process whose port it was has ended, and another listens there now.
TEST(LivenessProbe, SomebodyElseAtThePortIsAsGoodAsARefusal) {
  LivenessPort port = open_port(kOtherKey);
  LivenessProbe probe(loopback(port.port()), kKey);
  const std::int64_t begin = SteadyClock().now();
  while (probe.liveness() != Liveness::gone) {
    ASSERT_TRUE(probe.open());
    port.sweep();
  }
  EXPECT_GE(SteadyClock().now() - begin, 2 * kRefusalPause);
  EXPECT_FALSE(probe.proven());
}

TEST(LivenessProbe, WhereNoWayLeadsNothingIsKnown) {
  LivenessProbe nowhere({address_of("ff02::1"), 5, 0}, kKey);
  LivenessProbe none;
  for (LivenessProbe* probe : {&nowhere, &none})
    for (int i = 0; i < 10; ++i) EXPECT_EQ(probe->liveness(), Liveness::unknown);
}

/// A process is stopped, and its whole job asks after it.
TEST(LivenessPort, AProcessThatDoesNotLookIsKnownToLiveByAllWhoAsk) {
  constexpr std::size_t kAsking = 300;
  std::size_t most = 0;
  std::ifstream("/proc/sys/net/core/somaxconn") >> most;
  if (most < kAsking) GTEST_SKIP() << "the kernel keeps no more than " << most << " connections for a listener";
  const LivenessPort port = open_port();
  std::deque<LivenessProbe> probes;
  for (std::size_t i = 0; i < kAsking; ++i) probes.emplace_back(loopback(port.port()), kKey);
  const auto alive = [&] {
    return std::ranges::count(probes, Liveness::alive, [](LivenessProbe& probe) { return probe.liveness(); });
  };
  (void)alive();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(alive(), kAsking);
  EXPECT_EQ(alive(), kAsking);
}

/// A pass of a rail is no longer than that, however many connect.
TEST(LivenessPort, ASweepLetsGoOfABoundedNumberAndTheNextGoesOn) {
  LivenessPort port = open_port();
  constexpr int kConnections = LivenessPort::kMostPerSweep + 8;
  std::deque<LivenessProbe> probes;
  for (int i = 0; i < kConnections; ++i) {
    LivenessProbe& probe = probes.emplace_back(loopback(port.port()), kKey);
    while (probe.liveness() != Liveness::alive) ASSERT_TRUE(probe.open());
  }
  const auto held = [&] {
    return std::ranges::count_if(probes, [](LivenessProbe& probe) {
      (void)probe.liveness();
      return probe.open();  // not after it was answered
    });
  };
  EXPECT_EQ(held(), kConnections);
  port.sweep();
  EXPECT_EQ(held(), kConnections - LivenessPort::kMostPerSweep);
  port.sweep();
  EXPECT_EQ(held(), 0);
}

TEST(LivenessPort, WhoSaysNothingTakesABoundedRoomAndKeepsNobodyOut) {
  LivenessPort port = open_port();
  std::vector<Fd> silent;
  for (std::size_t i = 0; i < 3 * LivenessPort::kMostWaiting; ++i) silent.push_back(silent_connection(port.port()));
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = descriptors();
  for (int i = 0; i < 10; ++i) port.sweep();
  EXPECT_EQ(descriptors() - before, static_cast<std::ptrdiff_t>(LivenessPort::kMostWaiting));
  LivenessProbe probe(loopback(port.port()), kKey);
  while (!probe.proven()) {
    ASSERT_TRUE(probe.liveness() != Liveness::gone && (probe.open() || probe.proven()));
    port.sweep();
  }
}

TEST(LivenessPort, NoProgramThatIsStartedGetsASocketOfIt) {
  LivenessPort port = open_port();
  const Fd silent = silent_connection(port.port());
  port.sweep();
  LivenessProbe probe(loopback(port.port()), kKey);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::atoi(entry.path().filename().c_str());
    int listens = 0;
    socklen_t bytes = sizeof listens;
    if (::getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0) continue;
    EXPECT_NE(::fcntl(number, F_GETFD) & FD_CLOEXEC, 0) << "descriptor " << number;
  }
}

TEST(LivenessPort, AtNoAddressItIsAtAllOfTheHost) {
  auto port = LivenessPort::open({}, *PortRange::parse(""), kKey);
  ASSERT_TRUE(port.ok()) << port.error().text();
  for (const HostAddress& host : list_host_addresses()) {
    if (!host.up || is_link_local(host.ip)) continue;
    LivenessProbe probe({host.ip, port->port(), 0}, kKey);
    while (!probe.proven()) {
      ASSERT_TRUE(probe.liveness() != Liveness::gone && (probe.open() || probe.proven())) << text_of(host.ip);
      port->sweep();
    }
  }
}

TEST(HostAddresses, ThoseOfThePortComeFirstAndNoneIsOfALink) {
  const ibv_gid gid = address_of("fe80::1:2:3:4");
  const auto host = [](const char* address, std::size_t hardware_bytes = 6) {
    return HostAddress{address_of(address), true, false, std::vector<std::uint8_t>(hardware_bytes)};
  };
  const auto of_port = [&](HostAddress address) {
    std::ranges::copy(gid.raw, address.hardware.end() - sizeof gid.raw);
    return address;
  };
  std::vector<HostAddress> found = {host("::ffff:127.0.0.1"),
                                    host("::ffff:192.0.2.1"),
                                    host("::ffff:192.0.2.2"),
                                    host("::ffff:192.0.2.3", 20),
                                    of_port(host("::ffff:192.0.2.4", 20)),
                                    of_port(host("fd00::4", 20)),
                                    host("fe80::5", 20)};
  found[0].loopback = true;
  found[1].up = false;
  const auto text = [](const std::vector<ibv_gid>& chosen) {
    std::string all;
    for (const ibv_gid& one : chosen) all += text_of(one) + " ";
    return all;
  };
  EXPECT_EQ(text(choose_host_addresses(found, gid, 8)), "192.0.2.4 fd00::4 192.0.2.3 192.0.2.2 ");
  EXPECT_EQ(text(choose_host_addresses(found, gid, 2)), "192.0.2.4 fd00::4 ");
  found.resize(2);
  EXPECT_EQ(text(choose_host_addresses(found, gid, 8)), "127.0.0.1 ");
}

}  // namespace
}  // namespace railyard::fabric::verbs
