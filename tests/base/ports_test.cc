#include "base/ports.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <set>
#include <vector>

namespace railyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Bound {
  Fd socket;
  std::uint16_t port = 0;
};

Fd open_tcp() { return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

Result<Bound> listen_on(const PortRange& range, const char* host) {
  sockaddr_storage address{};
  auto& four = reinterpret_cast<sockaddr_in&>(address);
  four.sin_family = AF_INET;
  ::inet_pton(AF_INET, host, &four.sin_addr);
  auto socket = listen_within(range, address, sizeof four, 8, &open_tcp);
  if (!socket) return std::move(socket.error());
  return Bound{std::move(*socket), ntohs(four.sin_port)};
}

std::uint16_t port_of(const Fd& socket) {
  sockaddr_in name{};
  socklen_t length = sizeof name;
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
  return ntohs(name.sin_port);
}

/// So many ports in a row that nobody has now; another program may take one, so each test looks for its own.
PortRange free_range(std::uint16_t count) {
  for (std::uint32_t first = 20011; first + count < 30000; first += 97) {
    const auto begin = static_cast<std::uint16_t>(first);
    bool free = true;
    for (std::uint16_t i = 0; i < count && free; ++i) {
      const auto port = static_cast<std::uint16_t>(begin + i);
      free = listen_on({port, port}, "127.0.0.1").ok() && listen_on({port, port}, "127.0.0.2").ok();
    }
    if (free) return {begin, static_cast<std::uint16_t>(begin + count - 1)};
  }
  ADD_FAILURE() << "no free ports";
  return {};
}

TEST(Ports, ARangeIsParsedAndShown) {
  EXPECT_TRUE(PortRange::parse("")->any());
  EXPECT_EQ(PortRange::parse("")->count(), 0U);
  EXPECT_EQ(PortRange::parse("50000-50009")->count(), 10U);
  EXPECT_EQ(PortRange::parse("50000-50009")->text(), "50000-50009");
  EXPECT_EQ(PortRange::parse("77")->text(), "77");
}

TEST(Ports, ListenersStayWithinTheRangeUntilItIsUsedUp) {
  const PortRange range = free_range(4);
  std::vector<Bound> bound;
  std::set<std::uint16_t> ports;
  for (int i = 0; i < 4; ++i) {
    auto one = listen_on(range, "127.0.0.1");
    ASSERT_TRUE(one) << one.error().message();
    EXPECT_EQ(port_of(one->socket), one->port);
    EXPECT_GE(one->port, range.first);
    EXPECT_LE(one->port, range.last);
    ports.insert(one->port);
    bound.push_back(std::move(*one));
  }
  EXPECT_EQ(ports.size(), 4U);
  const auto fifth = listen_on(range, "127.0.0.1");
  ASSERT_FALSE(fifth);
  EXPECT_THAT(fifth.error().message(), AllOf(HasSubstr("RAILYARD_PORTS=" + range.text()), HasSubstr("127.0.0.1"),
                                             HasSubstr("all 4 are in use"), HasSubstr("Widen")));
  bound.erase(bound.begin());
  EXPECT_TRUE(listen_on(range, "127.0.0.1"));
}

TEST(Ports, ListenersAtDifferentAddressesShareOneNumber) {
  const PortRange range = free_range(8);
  const auto one = listen_on(range, "127.0.0.1");
  const auto other = listen_on(range, "127.0.0.2");
  ASSERT_TRUE(one && other);
  EXPECT_EQ(one->port, other->port);
}

TEST(Ports, AnAddressThatIsNotHereIsNamed) {
  const auto none = listen_on(free_range(2), "203.0.113.9");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), AllOf(HasSubstr("203.0.113.9"), HasSubstr("Cannot assign")));
}

/// A connection that its listener's side closed first keeps the port for a minute (TIME_WAIT).
TEST(Ports, ConnectionsThatHaveEndedDoNotHoldAPort) {
  const PortRange range = free_range(1);
  {
    const auto bound = listen_on(range, "127.0.0.1");
    ASSERT_TRUE(bound);
    const Fd client = open_tcp();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(bound->port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    Fd served(::accept4(bound->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    served.reset();
    char byte = 0;
    ASSERT_EQ(::recv(client.get(), &byte, 1, 0), 0);
  }
  const auto again = listen_on(range, "127.0.0.1");
  EXPECT_TRUE(again) << again.error().message();
}

TEST(Ports, WithoutARangeTheKernelChooses) {
  const auto one = listen_on({}, "127.0.0.1");
  ASSERT_TRUE(one);
  EXPECT_NE(one->port, 0);
  EXPECT_EQ(port_of(one->socket), one->port);
}

}  // namespace
}  // namespace railyard
