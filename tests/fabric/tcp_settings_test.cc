/// What the settings say of the sockets of tcp rails, as the kernel has it.
#include <gmock/gmock.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <poll.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/ports.hpp"
#include "fabric/tcp_bed.hpp"

namespace railyard::fabric {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kAf11 = 0x28;  // DSCP 10
constexpr int kEf = 0xb8;    // DSCP 46

int option(int socket, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(socket, level, name, &value, &length), 0);
  return value;
}

tcp_info info_of(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  EXPECT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  return info;
}

std::string congestion_of(int socket) {
  std::array<char, 32> name{};
  socklen_t length = name.size() - 1;
  EXPECT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length), 0);
  return name.data();
}

/// A range of ports that nobody has at this moment.
std::string free_ports(std::uint16_t count) {
  const auto taken = [](std::uint16_t port) {
    sockaddr_storage address{};
    auto& four = reinterpret_cast<sockaddr_in&>(address);
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return !listen_within({port, port}, address, sizeof four, 1,
                          [] { return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); });
  };
  for (std::uint32_t first = 21013; first < 30000; first += 89) {
    bool free = true;
    for (std::uint32_t i = 0; i < count && free; ++i) free = !taken(static_cast<std::uint16_t>(first + i));
    if (free) return std::to_string(first) + "-" + std::to_string(first + count - 1);
  }
  return {};
}

TEST(TcpPorts, RailsListenWithinTheRangeAndSayWhenItIsUsedUp) {
  Settings settings;
  settings.ports = free_ports(2);
  const auto range = PortRange::parse(settings.ports).value();
  auto bed = TcpBed::open(settings);
  ASSERT_TRUE(bed) << bed.error().message();
  for (const Rail* rail : {bed->from.get(), bed->to.get()}) {
    EXPECT_GE(port_of(*rail), range.first);
    EXPECT_LE(port_of(*rail), range.last);
  }
  EXPECT_NE(port_of(*bed->from), port_of(*bed->to));
  EXPECT_TRUE(bed->connect_and_send({1, 1, 0}, 100));
  const auto third = open_tcp(loopback_offer("127.0.0.1"), settings);
  ASSERT_FALSE(third);
  EXPECT_THAT(third.error().message(),
              AllOf(HasSubstr("RAILYARD_PORTS=" + settings.ports), HasSubstr("all 2 are in use"), HasSubstr("tcp lo")));
  settings.ports = "9-1";
  EXPECT_THAT(open_tcp(loopback_offer("127.0.0.1"), settings).error().message(), HasSubstr("RAILYARD_PORTS='9-1'"));
}

TEST(TcpPorts, RailsAtDifferentAddressesShareOnePort) {
  Settings settings;
  settings.ports = free_ports(8);
  std::vector<std::unique_ptr<Rail>> rails;
  for (const char* address : {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"}) {
    auto rail = open_tcp(loopback_offer(address), settings);
    ASSERT_TRUE(rail) << rail.error().message();
    rails.push_back(std::move(*rail));
    EXPECT_EQ(port_of(*rails.back()), port_of(*rails.front()));
  }
}

class TcpMarks : public ::testing::TestWithParam<const char*> {
 protected:
  static bool six() { return std::string_view(GetParam()).find(':') != std::string_view::npos; }
  static int mark_of(int socket) {
    return six() ? option(socket, IPPROTO_IPV6, IPV6_TCLASS) : option(socket, IPPROTO_IP, IP_TOS);
  }
  static bool missing() {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    const Fd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return six() && ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0;
  }
};
INSTANTIATE_TEST_SUITE_P(Versions, TcpMarks, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& info) { return std::string(info.index == 0 ? "IPv4" : "IPv6"); });

TEST_P(TcpMarks, BothEndsOfALinkCarryTheClassOfTheSettings) {
  if (missing()) GTEST_SKIP() << "no IPv6 here";
  Settings settings;
  settings.traffic_class = kAf11;
  auto bed = TcpBed::open(settings, GetParam());
  ASSERT_TRUE(bed) << bed.error().message();
  ASSERT_TRUE(bed->connect_and_send({1, 1, 0}, 100));
  const auto sockets = sockets_at(port_of(*bed->to));
  ASSERT_EQ(sockets.size(), 2u);
  for (const int socket : sockets) {
    EXPECT_EQ(mark_of(socket), kAf11);
    EXPECT_EQ(option(socket, SOL_SOCKET, SO_PRIORITY), kAf11 >> 5);
  }
}

TEST_P(TcpMarks, ALinkWithAClassOfItsOwnCarriesThatOneAtBothEnds) {
  if (missing()) GTEST_SKIP() << "no IPv6 here";
  Settings settings;
  settings.traffic_class = kAf11;
  auto bed = TcpBed::open(settings, GetParam());
  ASSERT_TRUE(bed) << bed.error().message();
  ASSERT_TRUE(bed->connect_and_send({1, 1, 0, kEf}, 100));
  const auto marked = sockets_at(port_of(*bed->to));
  ASSERT_EQ(marked.size(), 2u);
  for (const int socket : marked) {
    EXPECT_EQ(mark_of(socket), kEf);
    EXPECT_EQ(option(socket, SOL_SOCKET, SO_PRIORITY), kEf >> 5);
  }
  // The next link has the settings' again.
  ASSERT_TRUE(bed->connect_and_send({2, 1, 0}, 100));
  std::map<int, int> marks;
  for (const int socket : sockets_at(port_of(*bed->to))) ++marks[mark_of(socket)];
  EXPECT_EQ(marks, (std::map<int, int>{{kAf11, 2}, {kEf, 2}}));
}

TEST(TcpMarksOff, WithoutASettingNothingIsMarked) {
  auto bed = TcpBed::open({});
  ASSERT_TRUE(bed) << bed.error().message();
  ASSERT_TRUE(bed->connect_and_send({1, 1, 0}, 100));
  for (const int socket : sockets_at(port_of(*bed->to))) {
    EXPECT_EQ(option(socket, IPPROTO_IP, IP_TOS), 0);
    EXPECT_EQ(option(socket, SOL_SOCKET, SO_PRIORITY), 0);
    EXPECT_EQ(info_of(socket).tcpi_max_pacing_rate, UINT64_MAX);
  }
}

/// Every packet of the link, the answers of its target included, as a capture on the wire sees it.
TEST(TcpMarksOnTheWire, EveryPacketWithBytesOfALinkCarriesItsClass) {
  Fd capture(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_IP)));
  if (!capture) GTEST_SKIP() << "capturing packets needs root: " << std::strerror(errno);
  sockaddr_ll name{};
  name.sll_family = AF_PACKET;
  name.sll_protocol = htons(ETH_P_IP);
  name.sll_ifindex = static_cast<int>(::if_nametoindex("lo"));
  ASSERT_EQ(::bind(capture.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  const int room = 8 << 20;
  (void)::setsockopt(capture.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
  Settings settings;
  settings.traffic_class = kAf11;
  auto bed = TcpBed::open(settings);
  ASSERT_TRUE(bed) << bed.error().message();
  ASSERT_TRUE(bed->connect_and_send({1, 1, 0, kEf}, 60'000));
  const std::uint16_t port = port_of(*bed->to);
  struct Count {
    int marked = 0, others = 0, last = -1;
    std::uint64_t bytes = 0;
  };
  Count there, back;
  const auto look = [&] {
    std::array<unsigned char, 256> packet{};
    for (ssize_t got = 0; (got = ::recv(capture.get(), packet.data(), packet.size(), MSG_TRUNC)) > 0;) {
      const std::size_t header = (packet[0] & 0x0fU) * 4U;
      if (static_cast<std::size_t>(got) < header + 20 || packet[9] != IPPROTO_TCP) continue;
      const auto source = static_cast<std::uint16_t>(packet[header] << 8U | packet[header + 1]);
      const auto target = static_cast<std::uint16_t>(packet[header + 2] << 8U | packet[header + 3]);
      const std::size_t payload = static_cast<std::size_t>(got) - header - (packet[header + 12] >> 4U) * 4U;
      if (source != port && target != port) continue;
      Count& count = target == port ? there : back;
      count.last = packet[1] & 0xfcU;
      ++(count.last == kEf ? count.marked : count.others);
      count.bytes += payload;
    }
  };
  // Who connects knows the link's class from the first packet on. Who accepts knows it with the HELLO; what it has said
  // before has the settings' class. The acknowledgement of the last bytes may take the kernel a while.
  bed->poll_until([&] {
    look();
    return back.last == kEf && there.bytes >= 60'000;
  });
  EXPECT_GT(there.marked, 0);
  EXPECT_EQ(there.others, 0);
  EXPECT_GE(there.bytes, 60'000u);
  EXPECT_GT(back.bytes, 0u);
  EXPECT_EQ(back.last, kEf);
}

TEST(TcpPacing, TheKernelHoldsConnectionsToTheSetting) {
  constexpr std::uint64_t kMegabits = 400;
  constexpr std::uint64_t kBytesPerSecond = kMegabits * 1'000'000 / 8;
  Settings settings;
  settings.pacing_mbps = kMegabits;
  auto bed = TcpBed::open(settings);
  ASSERT_TRUE(bed) << bed.error().message();
  ASSERT_TRUE(bed->connect_and_send({1, 1, 0}, 60'000));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(bed->send(60'000));
  const auto sockets = sockets_at(port_of(*bed->to));
  ASSERT_EQ(sockets.size(), 2u);
  for (const int socket : sockets) {
    EXPECT_EQ(info_of(socket).tcpi_max_pacing_rate, kBytesPerSecond);
    EXPECT_LE(info_of(socket).tcpi_pacing_rate, kBytesPerSecond);
  }
}

/// What the two ends of a connection over loopback use.
std::vector<std::string> used_over_loopback(const std::string& congestion) {
  Settings settings;
  settings.congestion = congestion;
  auto bed = TcpBed::open(settings);
  if (!bed || !bed->connect_and_send({1, 1, 0}, 100)) return {};
  std::vector<std::string> used;
  for (const int socket : sockets_at(port_of(*bed->to))) used.push_back(congestion_of(socket));
  return used;
}

TEST(TcpCongestion, ConnectionsUseTheOneThatIsSet) {
  std::ifstream file("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  std::string other;
  while (file >> other && other == "reno") {
  }
  if (other.empty() || other == "reno") GTEST_SKIP() << "this kernel has one alone";
  EXPECT_THAT(used_over_loopback(other), ElementsAre(other, other));
}

TEST(TcpCongestion, NothingPacesWithinAHost) { EXPECT_THAT(used_over_loopback(""), ElementsAre("reno", "reno")); }

TEST(TcpCongestion, AnUnknownOneIsRefusedWithTheNamesOfThoseThatAreThere) {
  Settings settings;
  settings.congestion = "dodo";
  const auto rail = open_tcp(loopback_offer("127.0.0.1"), settings);
  ASSERT_FALSE(rail);
  EXPECT_EQ(rail.status(), Status::invalid);
  EXPECT_THAT(rail.error().message(), AllOf(HasSubstr("RAILYARD_CONGESTION=dodo"), HasSubstr("reno")));
}

}  // namespace
}  // namespace railyard::fabric
