/// How many packets a message costs, as the kernel counts them; docs/tcp.md has the table that this prints.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <thread>

#include "base/fd.hpp"
#include "fabric/tcp_bed.hpp"

namespace railyard::fabric {
namespace {

struct Segments {
  std::uint64_t data = 0;  ///< with bytes, from who sends
  std::uint64_t back = 0;  ///< of any kind, from who receives
};

Segments segments_now(const TcpBed& bed) {
  Segments now;
  const std::uint16_t port = port_of(*bed.to);
  for (const int socket : sockets_at(port)) {
    tcp_info info{};
    socklen_t length = sizeof info;
    EXPECT_EQ(::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    sockaddr_in name{};
    length = sizeof name;
    EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &length), 0);
    if (ntohs(name.sin_port) == port)
      now.back += info.tcpi_segs_out;
    else
      now.data += info.tcpi_data_segs_out;
  }
  return now;
}

/// Sends `count` messages, which all leave with one ring, and waits until all are there.
bool send_at_once(TcpBed& bed, std::size_t bytes, std::size_t count) {
  std::vector<std::byte> source(bytes), target(bytes * count);
  std::deque<PostContext> sent(count), received(count);
  for (std::size_t i = 0; i < count; ++i)
    if (bed.to->receive({target.data() + i * bytes, bytes}, &received[i]) != Post::posted) return false;
  for (PostContext& one : sent)
    if (bed.from->send(bed.link, {source.data(), bytes}, &one) != Post::posted) return false;
  bed.from->ring();
  std::size_t owed = 2 * count;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::array<Event, 32> events;
  while (owed != 0 && std::chrono::steady_clock::now() < give_up)
    for (Rail* rail : {bed.from.get(), bed.to.get()}) owed -= std::min(owed, rail->poll(events));
  return owed == 0;
}

struct PerMessage {
  double data = 0;
  double back = 0;
};

PerMessage measure(std::size_t bytes, std::size_t at_once, std::size_t times) {
  auto bed = TcpBed::open({});
  EXPECT_TRUE(bed);
  if (!bed || !bed->connect_and_send({1, 1, 0}, bytes)) {
    ADD_FAILURE() << "no link";
    return {};
  }
  const Segments before = segments_now(*bed);
  for (std::size_t i = 0; i < times; ++i) EXPECT_TRUE(send_at_once(*bed, bytes, at_once));
  const Segments after = segments_now(*bed);
  const auto messages = static_cast<double>(at_once * times);
  return {static_cast<double>(after.data - before.data) / messages,
          static_cast<double>(after.back - before.back) / messages};
}

/// A network of our own, whose loopback has packets of the usual length.
bool enter_network(int mtu) {
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const Fd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_mtu = mtu;
  if (::ioctl(any.get(), SIOCSIFMTU, &request) != 0) return false;
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  return ::ioctl(any.get(), SIOCSIFFLAGS, &request) == 0;
}

void check_segments(int mtu) {
  constexpr double kHeader = 32;  // of a frame
  const double room = mtu - 52;   // IP, TCP and its timestamps
  std::printf("MTU %d            segments with data, segments back, for each message\n", mtu);
  const auto one = [&](std::size_t bytes, std::size_t at_once, std::size_t times) {
    const PerMessage cost = measure(bytes, at_once, times);
    std::printf("%6zu B, %2zu at once   %8.2f   %8.2f\n", bytes, at_once, cost.data, cost.back);
    // What leaves with one ring is packed tightly: the last segment alone may be short. A tenth for what is sent twice.
    const double least = std::ceil(static_cast<double>(at_once) * (kHeader + static_cast<double>(bytes)) / room);
    EXPECT_LE(cost.data, 1.1 * (least + 1) / static_cast<double>(at_once)) << bytes << " " << at_once;
    EXPECT_LE(cost.back, 1.1 * (least + 1) / static_cast<double>(at_once)) << bytes << " " << at_once;
  };
  one(8, 1, 200);
  one(64, 1, 200);
  one(64, 32, 50);
  one(1024, 1, 200);
  one(1024, 16, 50);
  one(4096, 1, 100);
  one(60'000, 1, 50);
}

TEST(TcpSegments, MessagesThatArePostedTogetherSharePackets) { check_segments(65536); }

TEST(TcpSegments, TheSameWithPacketsOfTheUsualLength) {
  // A thread of its own: it never comes back to this network.
  bool entered = false;
  std::thread([&] {
    entered = enter_network(1500);
    if (entered) check_segments(1500);
  }).join();
  if (!entered) GTEST_SKIP() << "a network of one's own needs root";
}

}  // namespace
}  // namespace railyard::fabric
