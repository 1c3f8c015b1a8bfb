// What channels of a service class are marked with on the wire, and where contexts listen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "contexts.hpp"

namespace railyard {
namespace {

template <typename Look>
void for_each_socket(const Look& look) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    if (::getsockname(number, reinterpret_cast<sockaddr*>(&name), &length) != 0) continue;
    if (name.ss_family == AF_INET || name.ss_family == AF_INET6) look(number, name);
  }
}

/// How many connected sockets of this process send packets with which mark.
std::map<int, int> marks() {
  std::map<int, int> found;
  for_each_socket([&](int number, const sockaddr_storage& name) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (name.ss_family != AF_INET || ::getpeername(number, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return;
    int mark = 0;
    length = sizeof mark;
    if (::getsockopt(number, IPPROTO_IP, IP_TOS, &mark, &length) == 0) ++found[mark];
  });
  return found;
}

Settings over_sockets() {
  Settings settings = over_network(2);
  settings.driver = "tcp";
  settings.provider = "";
  settings.interfaces = "lo";
  settings.workers = 1;
  return settings;
}

TEST(ServiceClass, TheSocketsOfItsLinksCarryItAsTheirMark) {
  constexpr int kEf = 0xb8;
  constexpr int kAf11 = 0x28;
  Settings settings = over_sockets();
  settings.traffic_class = kAf11;
  const auto a = open_context(settings);
  const auto b = open_context(settings);
  const ChannelPair plain = connect(*a, *b, {});
  EXPECT_EQ(marks().count(kEf), 0u);
  const ChannelPair marked = connect(*a, *b, {.service_class = kEf});
  // Two rails, a connection for each, both of its ends here.
  EXPECT_TRUE(eventually([&] { return marks()[kEf] == 4 && marks()[kAf11] == 4; })) << marks()[kEf];
}

TEST(ServiceClass, OneThatIsNoMarkHasThatOfTheSettings) {
  Settings settings = over_sockets();
  settings.traffic_class = 0x28;
  const auto a = open_context(settings);
  const auto b = open_context(settings);
  const ChannelPair low = connect(*a, *b, {.service_class = 3});
  const ChannelPair high = connect(*a, *b, {.service_class = 1000});
  EXPECT_TRUE(eventually([] { return marks()[0x28] == 8; })) << marks()[0x28];
}

TEST(ContextPorts, EverythingThatAContextListensAtIsWithinTheRange) {
  Settings settings = over_sockets();
  settings.ports = "23100-23399";
  const auto a = open_context(settings);
  const auto listener = a->listen();
  ASSERT_TRUE(listener);
  int listening = 0;
  for_each_socket([&](int number, const sockaddr_storage& name) {
    int listens = 0;
    socklen_t length = sizeof listens;
    if (::getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) return;
    ++listening;
    const int port = ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                                      : reinterpret_cast<const sockaddr_in&>(name).sin_port);
    EXPECT_GE(port, 23100);
    EXPECT_LE(port, 23399);
  });
  EXPECT_EQ(listening, 3);  // two rails, and the listener for channels
}

TEST(ContextPorts, ARangeThatIsTooShortForChannelsIsNamed) {
  Settings settings = over_sockets();
  // The rails have both. Another run of this test has others.
  const int first = 24'000 + 2 * (::getpid() % 3000);
  settings.ports = std::to_string(first) + "-" + std::to_string(first + 1);
  const auto a = open_context(settings);
  const auto listener = a->listen();
  ASSERT_FALSE(listener);
  EXPECT_THAT(listener.error().message(), ::testing::HasSubstr("RAILYARD_PORTS=" + settings.ports));
}

}  // namespace
}  // namespace railyard
